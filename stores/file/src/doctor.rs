//! What is dangerous about the folder, and how to fix it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use distlock_core::Result;
use distlock_core::store::Finding;
use rustix::fs::statvfs;

use crate::error::{io_error, refusal};
use crate::layout::{Layout, is_absent};
use crate::lock_file::LockFile;
use crate::store::StoreState;

/// A disk with less free space counts as nearly full.
const LITTLE_SPACE: u64 = 16 << 20;
const FEW_INODES: u64 = 1000;

/// Checks the folder, and creates and locks a file in it.
pub(crate) fn examine(state: &StoreState) -> Result<Vec<Finding>> {
    let dir = state.layout.base();
    let new = fs::metadata(dir).is_err_and(|error| is_absent(&error));
    state.layout.create_folder(dir).map(drop).map_err(|error| io_error(error, "create the folder", dir))?;
    let mut found = Vec::new();
    let created = if new { ": it was created just now" } else { "" };
    found.push(Finding::ok(format!("the folder {} can be used{created}", dir.display())));
    found.extend(rights(&state.layout)?);
    found.extend(folders(&state.layout)?);
    found.push(file_system(dir));
    found.extend(space(dir)?);
    found.push(locks(&state.layout)?);
    found.push(if state.watcher.is_notified() {
        Finding::ok("the kernel wakes waiters (inotify)")
    } else {
        Finding::warning(
            "the kernel does not wake waiters: they poll every 2 to 100 ms",
            "on Linux and a local disk, raise fs.inotify.max_user_instances or remove distlock.wakeups=poll",
        )
    });
    Ok(found)
}

fn rights(layout: &Layout) -> Result<Vec<Finding>> {
    let dir = layout.base();
    let meta = fs::metadata(dir).map_err(|error| io_error(error, "check the folder", dir))?;
    let me = rustix::process::geteuid().as_raw();
    let mode = meta.mode() & 0o7777;
    let mut found = Vec::new();
    if meta.uid() != me {
        found.push(Finding::warning(
            format!("the folder belongs to user {} and this is user {me}", meta.uid()),
            "its owner can remove lock files under their holders: use a folder of your own, unless you share it \
             on purpose (distlock.access=group)",
        ));
    }
    if mode & 0o1002 == 0o002 {
        found.push(Finding::warning(
            format!("every user may write into the folder, and remove lock files under their holders (mode {mode:o})"),
            format!("chmod o-w {0}, or at least set the sticky bit: chmod +t {0}", dir.display()),
        ));
    } else if mode & 0o002 != 0 {
        found.push(Finding::warning(
            format!("every user may write into the folder (mode {mode:o})"),
            format!("a user who can write there can block every lock: chmod o-w {}", dir.display()),
        ));
    }
    if layout.is_for_group() && mode & 0o070 != 0o070 {
        found.push(Finding::warning(
            format!("the folder's group may not write into it (mode {mode:o})"),
            format!(
                "distlock.access=group is for a folder that its group may use: chmod 2770 {}",
                dir.display()
            ),
        ));
    } else if layout.is_for_group() && mode & 0o2000 == 0 {
        found.push(Finding::warning(
            format!("the folder has no setgid bit (mode {mode:o})"),
            format!(
                "lock files get the group of the user who creates them, and other members of the folder's group cannot \
                 use them: chmod g+s {}",
                dir.display()
            ),
        ));
    }
    if mode & 0o020 != 0 && !layout.is_for_group() {
        found.push(Finding::warning(
            format!("the folder's group may write into it (mode {mode:o})"),
            format!(
                "if it is shared on purpose, say so with distlock.access=group; otherwise chmod g-w {}",
                dir.display()
            ),
        ));
    }
    if found.is_empty() {
        let whose = match mode & 0o077 {
            0 => "the folder is private",
            _ if layout.is_for_group() => "the folder is for its group",
            _ => "only its owner may write into the folder",
        };
        found.push(Finding::ok(format!("{whose} (mode {mode:o})")));
    }
    Ok(found)
}

/// Folders inside that cannot be used, such as those of another user.
fn folders(layout: &Layout) -> Result<Vec<Finding>> {
    const ADVICE: &str =
        "locks of that kind are refused: find out who created it, and remove it or choose another folder";
    let dir = layout.base();
    let base = fs::metadata(dir).map_err(|error| io_error(error, "check the folder", dir))?;
    let found = layout.folders().into_iter().filter_map(|dir| {
        let folder = match layout.folder(&dir) {
            Ok(folder) => folder,
            Err(error) if is_absent(&error) => return None,
            Err(error) => {
                let what = match refusal(&error) {
                    Some(refusal) => refusal.to_string(),
                    None => format!("{} cannot be opened: {error}", dir.display()),
                };
                return Some(Finding::warning(what, ADVICE));
            }
        };
        if !folder.is_writable() {
            return Some(Finding::warning(
                format!("this user may not write into {}", dir.display()),
                "locks of that kind are refused: give this user the folder (chown -R), or choose another one",
            ));
        }
        let meta = folder.metadata().ok()?;
        let mode = meta.st_mode & 0o7777;
        let is_groups = mode & 0o2070 == 0o2070 && meta.st_gid == base.gid();
        (layout.is_for_group() && !is_groups).then(|| {
            Finding::warning(
                format!(
                    "{} is not for the group of the folder (mode {mode:o}, group {})",
                    dir.display(),
                    meta.st_gid
                ),
                format!("chgrp -R {} {1} && chmod -R g+rwX {1} && chmod g+s {1}", base.gid(), dir.display()),
            )
        })
    });
    Ok(found.collect())
}

fn file_system(dir: &Path) -> Finding {
    match network(dir) {
        Some(name) => Finding::warning(
            format!("the folder is on {name}"),
            "locks may not exclude other machines, may stay after a crash of the holder, and waiters poll: use a local \
             disk, or a server such as Redis or PostgreSQL for locks across machines",
        ),
        None => Finding::ok("the folder is on a local file system"),
    }
}

fn space(dir: &Path) -> Result<Vec<Finding>> {
    let stat = statvfs(dir).map_err(|error| io_error(error.into(), "check the file system", dir))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let mut found = Vec::new();
    if free < LITTLE_SPACE {
        found.push(Finding::warning(
            format!("only {} KiB are free on the file system", free >> 10),
            "a new lock needs 8 KiB: free some space",
        ));
    }
    // File systems without a fixed number of inodes report zero.
    if stat.f_files > 0 && stat.f_favail < FEW_INODES {
        found.push(Finding::warning(
            format!("only {} inodes are free on the file system", stat.f_favail),
            "every lock is a file: remove files that are not needed",
        ));
    }
    if found.is_empty() {
        found.push(Finding::ok(format!("{} MiB are free", free >> 20)));
    }
    Ok(found)
}

/// Locks a file through two descriptors: some file systems grant every lock.
fn locks(layout: &Layout) -> Result<Finding> {
    let path = layout.base().join(format!("doctor-{}-{:016x}", std::process::id(), fastrand::u64(..)));
    let checked = excludes(layout, &path);
    let _ = layout.remove(&path);
    Ok(match checked? {
        true => Finding::ok("kernel locks work there"),
        false => Finding::warning(
            "kernel locks do not work there: two holders got one lock",
            "use a folder on a local disk",
        ),
    })
}

fn excludes(layout: &Layout, path: &Path) -> Result<bool> {
    let (first, second) = (LockFile::open(layout, path)?, LockFile::open(layout, path)?);
    let excludes = first.try_lock()? && !second.try_lock()? && !second.try_lock_shared()?;
    first.unlock();
    Ok(excludes && second.try_lock()?)
}

/// Whether the folder, or its nearest existing parent, is on a network file system.
pub(crate) fn is_network(dir: &Path) -> bool {
    dir.ancestors().find(|dir| dir.exists()).and_then(network).is_some()
}

#[cfg(target_os = "linux")]
fn network(dir: &Path) -> Option<&'static str> {
    // The field's width and sign differ between architectures; the numbers fit into 32 bits.
    rustix::fs::statfs(dir).ok().and_then(|stat| network_by_magic(stat.f_type as u32))
}

/// The name of a network or user-space file system, by the magic number of `statfs(2)`.
#[cfg(target_os = "linux")]
fn network_by_magic(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => "a Windows share (CIFS, SMB)",
        0x6573_5546 => "a FUSE file system (such as sshfs)",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x0102_1997 => "a 9P share",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x4750_4653 => "GPFS",
        0x1983_0326 => "BeeGFS",
        0x786f_4256 => "a VirtualBox share",
        _ => return None,
    })
}

#[cfg(not(target_os = "linux"))]
fn network(_: &Path) -> Option<&'static str> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_network_file_system_is_not_taken_for_a_local_one() {
        for magic in [0x6969, 0xff53_4d42, 0x6573_5546] {
            assert!(network_by_magic(magic).is_some());
        }
        // ext4, XFS, Btrfs, tmpfs, overlayfs, ZFS.
        for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(network_by_magic(magic), None);
        }
        assert!(!is_network(Path::new("/proc/nowhere/at/all")));
    }
}
