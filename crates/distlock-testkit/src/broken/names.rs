//! What defects do to the names of resources and to lock ids.

use distlock_core::{Kind, LockId, Resource};

use super::Defect;

/// The resource as the broken store sees it.
pub(super) fn bent(defect: Option<Defect>, resource: &Resource, capacity: u32) -> Resource {
    let name = resource.name();
    let bent = match defect {
        Some(Defect::FoldsCase) => name.to_lowercase(),
        Some(Defect::CutsNames) => name.chars().take(255).collect(),
        Some(Defect::CapacityOfWhoeverAsks) if resource.kind() == Kind::Semaphore => {
            format!("{name} of {capacity}")
        }
        // Reader-writer locks and semaphores end up in one table, by name alone.
        Some(Defect::KindsShareNames) if resource.kind() == Kind::Semaphore => {
            return Resource::new(Kind::RwLock, name).expect("the name was good");
        }
        _ => return resource.clone(),
    };
    Resource::new(resource.kind(), bent).expect("a bent name is no longer than a name may be")
}

/// The lock id as the broken store sees it.
pub(super) fn bent_id(defect: Option<Defect>, lock_id: &LockId) -> LockId {
    match (defect, lock_id.as_str().rsplit_once('-')) {
        (Some(Defect::LockIdPerEngine), Some((engine, _))) => LockId::from_stored(engine),
        _ => lock_id.clone(),
    }
}
