//! Where the kernel has no inotify: waiters poll.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::Scope;

/// There is none.
#[derive(Debug)]
pub(super) struct Kernel(Infallible);

#[derive(Debug)]
pub(super) struct Event {
    pub(super) key: Option<i32>,
    pub(super) is_move: bool,
    pub(super) is_end: bool,
}

impl Kernel {
    pub(super) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn add(&self, _: &Path, _: Scope) -> io::Result<i32> {
        match self.0 {}
    }

    pub(super) fn raise(&self, _: File) -> File {
        match self.0 {}
    }

    pub(super) fn remove(&self, _: i32) {
        match self.0 {}
    }

    pub(super) fn interrupt(&self) {
        match self.0 {}
    }

    pub(super) fn wait(&self, _: Duration) -> Vec<Event> {
        match self.0 {}
    }
}
