//! The conformance suite of all stores, on lock files in a temporary folder.

#![allow(clippy::unwrap_used)]

use distlock_core::store::Backend;
use distlock_file::{FileConfig, FileStore};
use distlock_testkit::conformance::{Fixture, Others};
use tempfile::TempDir;

struct Folder(TempDir);

impl Fixture for Folder {
    async fn open() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    async fn connect(&self) -> Backend {
        Folder::join(self.0.path().to_str().unwrap().to_owned()).await
    }

    fn others(&self) -> Others {
        Others::Processes(self.0.path().to_str().unwrap().to_owned())
    }

    async fn join(address: String) -> Backend {
        Backend::session(FileStore::connect(FileConfig::new(address)).await.unwrap())
    }
}

distlock_testkit::conformance!(Folder);
