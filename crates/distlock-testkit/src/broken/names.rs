//! Defects that change resource names and lock ids.

use distlock_core::{Kind, LockId, Resource};

use super::Defect;

/// The resource as the broken store sees it.
pub(super) fn broken_resource(defect: Option<Defect>, resource: &Resource, capacity: u32) -> Resource {
    let name = resource.name();
    let name = match defect {
        Some(Defect::FoldsCase) => name.to_lowercase(),
        Some(Defect::TruncatesNames) => name.chars().take(255).collect(),
        Some(Defect::CapacityPerRequest) if resource.kind() == Kind::Semaphore => {
            format!("{name} of {capacity}")
        }
        // Reader-writer locks and semaphores share one table, keyed by name alone.
        Some(Defect::KindsShareNames) if resource.kind() == Kind::Semaphore => {
            return Resource::new(Kind::RwLock, name).expect("a valid name");
        }
        _ => return resource.clone(),
    };
    Resource::new(resource.kind(), name).expect("no longer than the original name")
}

/// The lock id as the broken store sees it.
pub(super) fn broken_lock_id(defect: Option<Defect>, lock_id: &LockId) -> LockId {
    match (defect, lock_id.as_str().rsplit_once('-')) {
        (Some(Defect::LockIdPerEngine), Some((engine, _))) => LockId::from_stored(engine),
        _ => lock_id.clone(),
    }
}
