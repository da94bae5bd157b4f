//! Tests of lock files.

use super::*;
use crate::config::Access;

fn open(dir: &Path, name: &str) -> LockFile {
    let layout = Layout::new(dir.to_owned(), Access::Private);
    LockFile::open(&layout, &layout.mutex(name)).unwrap()
}

const BOOT: &str = "0f58a9e0-1cd1-4b7a-a1a5-47ab1c3bb2e4";

fn token_in(boot: Option<BootId>, file: &LockFile, name: &str) -> Result<u64> {
    let counted = file.next_token(name, &file.content()?, boot, |_, last| Owner::free_block(last))?;
    Ok(counted.token.get())
}

fn next_token(file: &LockFile, name: &str) -> Result<u64> {
    token_in(BootId::parse(BOOT), file, name)
}

#[test]
fn tokens_rise_and_keep_rising_after_the_file_was_unlinked() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path(), "a");
    let mut last = next_token(&file, "a").unwrap();
    for _ in 0..20 {
        let next = next_token(&open(dir.path(), "a"), "a").unwrap();
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    std::fs::remove_file(file.path()).unwrap();
    assert!(!file.is_in_place().unwrap());
    assert!(next_token(&open(dir.path(), "a"), "a").unwrap() > last);
}

#[test]
fn a_foreign_file_is_refused_and_left_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = open(dir.path(), "a").path().to_owned();
    let precious = vec![b'#'; 5000];
    std::fs::write(&path, &precious).unwrap();
    let error = next_token(&open(dir.path(), "a"), "a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(std::fs::read(&path).unwrap(), precious);
}

#[test]
fn the_file_of_another_long_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = ("x".repeat(500), "y".repeat(500));
    let file = open(dir.path(), &one);
    next_token(&file, &one).unwrap();
    next_token(&file, &one).unwrap();
    assert_eq!(file.name().as_deref(), Some(&*one));
    let other = open(dir.path(), &two);
    std::fs::copy(file.path(), other.path()).unwrap();
    assert_eq!(next_token(&open(dir.path(), &two), &two).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn an_interrupted_first_grant_does_not_corrupt_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let name = "x".repeat(3000);
    let file = open(dir.path(), &name);
    let token = next_token(&file, &name).unwrap();
    let whole = std::fs::read(file.path()).unwrap();
    for length in [0, 1, 100, 511, 512, 700, 1024, 1500, 2048, 2060, whole.len() - 1] {
        std::fs::write(file.path(), &whole[..length]).unwrap();
        let next = next_token(&file, &name).unwrap();
        assert!(next > token, "{next} after {token}, cut at {length}");
        next_token(&file, &name).unwrap();
        assert_eq!(file.name().as_deref(), Some(&*name), "cut at {length}");
    }
}

#[test]
fn an_inspection_is_not_taken_for_a_holder() {
    let dir = tempfile::tempdir().unwrap();
    let (holder, other) = (open(dir.path(), "a"), open(dir.path(), "a"));
    let inspects = File::open(holder.path()).unwrap();
    assert!(!is_locked(&inspects).unwrap());
    assert!(holder.try_lock().unwrap());
    assert!(is_locked(&inspects).unwrap() && !other.try_lock().unwrap() && !other.try_lock_shared().unwrap());
    holder.unlock();
    inspects.try_lock_shared().unwrap();
    assert!(!other.try_lock().unwrap() && other.try_lock_shared().unwrap());
}

#[test]
fn a_power_failure_between_ceiling_and_use_skips_tokens_and_repeats_none() {
    const SECTOR: usize = 512;
    let dir = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(15);
    let mut boot = BootId::parse(BOOT);
    let file = open(dir.path(), "a");
    let read = || std::fs::read(file.path()).unwrap();
    let mut highest = token_in(boot, &file, "a").unwrap();
    // Each sector is on disk as it was when the file was last synced, or as it was at any time since.
    let mut on_disk = vec![read()];
    for _ in 0..200 {
        if random.u8(0..4) == 0 {
            let mut survived = on_disk[0].clone();
            for at in (0..survived.len()).step_by(SECTOR) {
                let end = (at + SECTOR).min(survived.len());
                let from = &on_disk[random.usize(..on_disk.len())];
                survived[at..end].copy_from_slice(&from[at..end]);
            }
            std::fs::write(file.path(), survived).unwrap();
            boot = BootId::parse(&format!("{:032x}", random.u128(1..)));
        } else {
            let before = read();
            let token = token_in(boot, &file, "a").unwrap();
            assert!(token > highest, "{token} after {highest}");
            highest = token;
            if before[..2 * SECTOR] != read()[..2 * SECTOR] {
                // The ceiling was moved and synced; the owner block was written after that.
                on_disk = vec![[&read()[..2 * SECTOR], &before[2 * SECTOR..]].concat()];
            }
        }
        on_disk.push(read());
    }
}

#[test]
fn a_process_of_an_earlier_version_between_two_grants_repeats_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path(), "a");
    let mut last = next_token(&file, "a").unwrap();
    for round in 0..20 {
        // What that version does: one more than the highest counter, on disk, and its own owner block.
        let Counter::Last(counter) = file.content().unwrap().counter else { panic!("no counter") };
        let theirs = counter + 1;
        file.file.write_all_at(&format::counter_block(theirs), format::counter_at(theirs)).unwrap();
        if round % 2 == 0 {
            file.file.write_all_at(&Owner::free_block(None), OWNER_AT).unwrap();
        }
        let ours = next_token(&file, "a").unwrap();
        let again = next_token(&file, "a").unwrap();
        assert!(last < theirs && theirs < ours && ours < again, "{last} {theirs} {ours} {again}");
        last = again;
    }
}

#[test]
fn a_failed_sync_of_the_ceiling_leaves_no_token_to_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path(), "a");
    let first = next_token(&file, "a").unwrap();
    // The new ceiling was written and could not be synced, so the last token is not below it.
    let Counter::Last(ceiling) = file.content().unwrap().counter else { panic!("no counter") };
    let written = ceiling + 999_999;
    file.file.write_all_at(&format::counter_block(written), format::counter_at(written)).unwrap();
    assert!(next_token(&file, "a").unwrap() > written && written > first);
}

#[test]
fn a_first_grant_that_ended_before_its_sync_leaves_no_ceiling_to_count_below() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path(), "a");
    let ceiling = u64::try_from(format::time_of_day().as_micros()).unwrap() + 3_600_000_000;
    // What a process that is killed in this call may leave.
    file.initialize("a", ceiling).unwrap();
    let (content, boot) = (file.content().unwrap(), BootId::parse(BOOT));
    let counted = file.next_token_below_ceiling(&content, boot, |_, last| Owner::free_block(last)).unwrap();
    assert!(counted.is_none(), "granted below a ceiling that may not be on disk: {counted:?}");
    assert!(next_token(&file, "a").unwrap() > ceiling);
}
