//! The next fencing token of a lock file, and when the disk is waited for.
//!
//! Tokens are the time of day in microseconds, or one more than the last token if that is not later. The disk is not waited
//! for at every grant. The counter of a file is a **ceiling**: it is on disk before the first token up to it is granted, and
//! most grants stay below it. The last token itself is written to the file, and the kernel has it from then on: it
//! survives the death of the process (kill -9). It need not survive a power failure.
//!
//! So the last token counts only if nothing was lost since: the machine still runs (the same boot id), and no other program
//! moved the ceiling. Otherwise the next token is above the ceiling, and tokens are skipped; none is repeated. The time of day
//! also protects where the kernel loses what it had without a restart, such as after a write error of the disk or on a disk
//! that was pulled out: then a token is repeated only if the clock was set back as well.
//!
//! Earlier versions count in the same blocks, one by one: what is a ceiling for us is the last token for them. They
//! continue above it, and we continue above what they wrote.

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

use crate::format::Counter;

/// How far the ceiling is above the token that moves it, in microseconds: a lock in constant use waits for the disk once a
/// second.
const AHEAD: u64 = 1_000_000;

/// The last token, and what it was granted under. Written at each grant and each release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastToken {
    pub(crate) token: u64,
    /// The ceiling at the time.
    pub(crate) ceiling: u64,
    pub(crate) boot: BootId,
}

/// The identity of one run of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BootId(u128);

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl BootId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let digits = if text.contains('-') { text.replace('-', "").into() } else { Cow::from(text) };
        // Zero is what a system without boot ids may show.
        u128::from_str_radix(&digits, 16).ok().filter(|id| digits.len() == 32 && *id != 0).map(BootId)
    }

    /// The running kernel's; `None` where the system does not tell.
    pub(crate) fn current() -> Option<Self> {
        static CURRENT: OnceLock<Option<BootId>> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
            text.and_then(|text| BootId::parse(&text))
        })
    }
}

impl LastToken {
    /// Reads it from the line that [`Display`](fmt::Display) writes.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (token, rest) = line.strip_prefix("last ")?.split_once(" below ")?;
        let (ceiling, boot) = rest.split_once(" boot ")?;
        Some(LastToken {
            token: token.parse().ok()?,
            ceiling: ceiling.parse().ok()?,
            boot: BootId::parse(boot)?,
        })
    }
}

/// As a line of the owner block.
impl fmt::Display for LastToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LastToken { token, ceiling, boot } = self;
        write!(f, "last {token} below {ceiling} boot {boot}")
    }
}

/// The next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextToken {
    pub(crate) token: u64,
    /// The counter after this grant.
    pub(crate) ceiling: u64,
    /// The counter must be written, and be on disk, before the token is granted.
    pub(crate) moves_ceiling: bool,
}

/// The next token of a file; `None` if its counter was not written by distlock, or is exhausted.
///
/// `boot`: `None` if the last token must be on disk at every grant. `now`: the time of day in microseconds.
pub(crate) fn next(
    counter: Counter,
    last: Option<LastToken>,
    boot: Option<BootId>,
    now: u64,
) -> Option<NextToken> {
    let ahead = if boot.is_some() { AHEAD } else { 0 };
    let ceiling = match counter {
        Counter::New => {
            let token = now.max(1);
            return Some(NextToken { token, ceiling: token + ahead, moves_ceiling: true });
        }
        Counter::Last(ceiling) if ceiling < i64::MAX.unsigned_abs() - 2 * AHEAD => ceiling,
        Counter::Last(_) | Counter::Broken => return None,
    };
    let known =
        last.filter(|last| Some(last.boot) == boot && last.ceiling == ceiling && last.token <= ceiling);
    let token = known.map_or(ceiling, |last| last.token) + 1;
    // A clock far in the future must not exhaust the counter.
    let token = token.max(now.min(i64::MAX.unsigned_abs() / 2));
    if token <= ceiling {
        return Some(NextToken { token, ceiling, moves_ceiling: false });
    }
    let above = token + ahead;
    // The block that has the old ceiling must stay whole until the new one is on disk: see `format`.
    let above = if above % 2 == ceiling % 2 { above + 1 } else { above };
    Some(NextToken { token, ceiling: above, moves_ceiling: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = BootId(7);
    const LATER: BootId = BootId(8);
    const NOW: u64 = 1_763_240_000_000_000;

    /// A file, as the kernel has it.
    #[derive(Clone, Copy)]
    struct Image {
        counter: Counter,
        last: Option<LastToken>,
    }

    impl Image {
        fn grant(&mut self, boot: Option<BootId>, now: u64) -> NextToken {
            let next = next(self.counter, self.last, boot, now).unwrap();
            self.counter = Counter::Last(next.ceiling);
            self.last = boot.map(|boot| LastToken { token: next.token, ceiling: next.ceiling, boot });
            next
        }

        /// A grant of an earlier version, which keeps the last token of ours or overwrites it.
        fn grant_one_by_one(&mut self, keep: bool) -> u64 {
            let Counter::Last(last) = self.counter else { panic!("no counter") };
            self.counter = Counter::Last(last + 1);
            self.last = self.last.filter(|_| keep);
            last + 1
        }
    }

    #[test]
    fn the_disk_is_waited_for_once_a_second_and_not_at_every_grant() {
        let mut file = Image { counter: Counter::New, last: None };
        let moved = (0..100_000).filter(|at| file.grant(Some(BOOT), NOW + at * 100).moves_ceiling).count();
        assert_eq!(moved, 10);
    }

    #[test]
    fn a_token_that_must_be_on_disk_at_every_grant_is() {
        let mut file = Image { counter: Counter::New, last: None };
        let mut last = 0;
        for at in 0..1000 {
            let next = file.grant(None, NOW - at);
            assert!(next.moves_ceiling && next.token > last && next.ceiling >= next.token);
            last = next.token;
        }
    }

    #[test]
    fn no_token_is_repeated_by_a_crash_a_clock_set_back_or_an_earlier_version() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut file = Image { counter: Counter::New, last: None };
            let (mut now, mut boot, mut highest) = (NOW, BOOT, 0);
            // What is on disk for certain: the counter, and some state of the last token since.
            let mut possible = vec![file];
            for step in 0..200 {
                match random.u32(0..12) {
                    // A power failure. The clock may be wrong after it.
                    0 => {
                        file = possible[random.usize(..possible.len())];
                        boot = if boot == BOOT { LATER } else { BootId(random.u128(9..)) };
                        now -= random.u64(0..3_000_000);
                    }
                    1 => now -= random.u64(0..3_000_000),
                    2 if file.counter != Counter::New => {
                        let token = file.grant_one_by_one(random.bool());
                        assert!(token > highest, "seed {seed}, step {step}: {token} after {highest}");
                        highest = token;
                        possible = vec![file];
                    }
                    3 => {
                        let token = file.grant(None, now).token;
                        assert!(token > highest, "seed {seed}, step {step}: {token} after {highest}");
                        highest = token;
                        possible = vec![file];
                    }
                    _ => {
                        let next = file.grant(Some(boot), now);
                        assert!(next.token > highest, "seed {seed}, step {step}: {next:?} after {highest}");
                        assert!(next.token <= next.ceiling);
                        highest = next.token;
                        if next.moves_ceiling {
                            // On disk are the counter and, with or without the last token, what was there before.
                            possible = vec![Image { last: possible[0].last, ..file }];
                        }
                        possible.push(file);
                    }
                }
                now += random.u64(0..400_000);
            }
        }
    }

    #[test]
    fn what_the_kernel_lost_without_a_restart_repeats_no_token_while_the_clock_runs() {
        let mut file = Image { counter: Counter::New, last: None };
        let mut images = Vec::new();
        for at in 0..100 {
            file.grant(Some(BOOT), NOW + at * 10);
            images.push(file);
        }
        let highest = file.last.unwrap().token;
        for mut lost in images.into_iter().filter(|image| image.counter == file.counter) {
            assert!(lost.grant(Some(BOOT), NOW + 2000).token > highest);
        }
    }

    #[test]
    fn the_block_of_the_old_ceiling_stays_whole_while_the_new_one_is_written() {
        let mut file = Image { counter: Counter::New, last: None };
        let mut old = file.grant(Some(BOOT), NOW).ceiling;
        for at in 1..100 {
            let next = file.grant(Some(BOOT), NOW + at * 1_500_001);
            assert!(next.moves_ceiling && next.ceiling % 2 != old % 2);
            old = next.ceiling;
        }
    }

    #[test]
    fn a_foreign_or_exhausted_counter_is_refused() {
        assert_eq!(next(Counter::Broken, None, Some(BOOT), NOW), None);
        assert_eq!(next(Counter::Last(i64::MAX.unsigned_abs()), None, Some(BOOT), NOW), None);
        // A clock in the far future does not exhaust it.
        let mut file = Image { counter: Counter::Last(NOW), last: None };
        file.grant(Some(BOOT), u64::MAX);
        assert!(next(file.counter, None, None, NOW).is_some());
    }

    #[test]
    fn the_line_of_the_last_token_is_read_back_and_a_damaged_one_is_not() {
        let last = LastToken { token: NOW, ceiling: NOW + 9, boot: BootId(u128::MAX - 5) };
        assert_eq!(LastToken::parse(&last.to_string()), Some(last));
        for cut in 0..last.to_string().len() {
            assert_eq!(LastToken::parse(&last.to_string()[..cut]), None);
        }
        assert_eq!(BootId::parse("00000000-0000-0000-0000-000000000000\n"), None);
        assert!(BootId::parse("0f58a9e0-1cd1-4b7a-a1a5-47ab1c3bb2e4\n").is_some());
    }
}
