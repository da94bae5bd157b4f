//! The conformance suite of all stores, on lock files in a temporary folder.

#![allow(clippy::unwrap_used)]

use distlock_core::store::Backend;
use distlock_file::{FileConfig, FileStore};
use distlock_testkit::conformance::{ActorMode, Fixture};
use tempfile::TempDir;

struct Folder(TempDir);

impl Fixture for Folder {
    async fn open() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    async fn connect(&self) -> Backend {
        Folder::connect_to(self.0.path().to_str().unwrap().to_owned()).await
    }

    fn actor_mode(&self) -> ActorMode {
        ActorMode::Processes(self.0.path().to_str().unwrap().to_owned())
    }

    async fn connect_to(address: String) -> Backend {
        Backend::session(FileStore::connect(FileConfig::new(address)).await.unwrap())
    }
}

distlock_testkit::conformance!(Folder);
