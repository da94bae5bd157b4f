//! Tests of the layout.

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn files_are_private_unless_a_group_shares_them() {
    let dir = tempfile::tempdir().unwrap();
    for (access, folders, files) in [(Access::Private, 0o700, 0o600), (Access::Group, 0o2770, 0o660)] {
        let base = dir.path().join(format!("deep/er/{access:?}"));
        let layout = Layout::new(base.clone(), access);
        let path = layout.mutex("a");
        layout.open(&path).unwrap();
        assert_eq!((mode(&base), mode(path.parent().unwrap()), mode(&path)), (folders, folders, files));
    }
}

#[test]
fn a_symbolic_link_is_not_followed_and_a_pipe_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path().to_owned(), Access::Private);
    let victim = dir.path().join("victim");
    fs::write(&victim, "x").unwrap();
    std::os::unix::fs::symlink(&victim, dir.path().join("link")).unwrap();
    assert!(layout.open(&dir.path().join("link")).is_err());
    assert!(layout.folder(&dir.path().join("..")).is_err() && layout.folder(Path::new("/")).is_err());
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert!(layout.open_read_only(&pipe).is_ok());
}

#[test]
fn kinds_of_one_name_never_share_a_path() {
    let layout = Layout::new("/d".into(), Access::Private);
    let kinds = [Kind::RwLock, Kind::Semaphore, Kind::FairQueue];
    let mut paths: Vec<PathBuf> = kinds.iter().map(|kind| layout.pool(*kind, "../x")).collect();
    paths.push(layout.mutex("../x"));
    assert!(paths.iter().all(|path| path.starts_with("/d") && path.components().count() == 4), "{paths:?}");
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 4);
}

#[test]
fn a_new_lock_file_is_not_created_in_a_folder_that_was_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path().join("base"), Access::Private);
    let (known, new) = (layout.mutex("a"), layout.mutex("b"));
    let (_, first) = layout.open_mutex(&known).unwrap();
    assert_eq!(FileId::at(&known).unwrap(), Some(first));
    fs::rename(layout.base(), dir.path().join("old")).unwrap();
    // Found in the old folder: the caller sees that it is not in place.
    assert_eq!(layout.open_mutex(&known).unwrap().1, first);
    assert_eq!(FileId::at(&known).unwrap(), None);
    layout.forget_mutexes();
    let (_, second) = layout.open_mutex(&known).unwrap();
    assert_eq!(FileId::at(&known).unwrap(), Some(second));
    fs::remove_dir_all(layout.base()).unwrap();
    let (_, created) = layout.open_mutex(&new).unwrap();
    assert_eq!(FileId::at(&new).unwrap(), Some(created));
}
