//! How the tokens of mutexes are drawn.

#[cfg(any(test, feature = "test-util"))]
use std::time::Duration;

use super::records::TokenHistory;
use crate::clock::Moment;
use crate::resource::FencingToken;

/// The rule of a store.
#[derive(Clone, Debug, Default)]
pub(super) enum TokenRule {
    /// Each name remembers its last token.
    #[default]
    PerName,
    #[cfg(any(test, feature = "test-util"))]
    PerServer(ServerCounter),
}

impl TokenRule {
    pub(super) fn draw(&mut self, history: &mut TokenHistory, now: Moment) -> FencingToken {
        match self {
            TokenRule::PerName => history.next_token(now),
            #[cfg(any(test, feature = "test-util"))]
            TokenRule::PerServer(counter) => counter.draw(now),
        }
    }

    /// No token is granted below this one any more.
    pub(super) fn raise(&mut self, history: &mut TokenHistory, token: FencingToken, now: Moment) {
        match self {
            TokenRule::PerName => history.raise(token),
            #[cfg(any(test, feature = "test-util"))]
            TokenRule::PerServer(counter) => counter.raise(token, now),
        }
        let _ = now;
    }
}

/// For tests: the rule of Redis, whose mutexes share one counter and leave nothing behind. A token is the clock in µs, or one more
/// than the last token of the whole server. The counter expires like its key there.
#[cfg(any(test, feature = "test-util"))]
#[derive(Clone, Debug)]
pub(super) struct ServerCounter {
    last: Option<u64>,
    expires_at: Moment,
    retention: Duration,
}

#[cfg(any(test, feature = "test-util"))]
impl ServerCounter {
    pub(super) fn new(retention: Duration) -> Self {
        ServerCounter { last: None, expires_at: Moment::NEVER, retention }
    }

    fn draw(&mut self, now: Moment) -> FencingToken {
        let (last, now_us) = (self.known(now), microseconds(now));
        let token = last.filter(|last| *last >= now_us).map_or(now_us, |last| last.saturating_add(1));
        self.keep(token, now)
    }

    /// Kept for longer if it is ahead of the clock, because then the clock alone would not produce a higher one.
    fn keep(&mut self, token: u64, now: Moment) -> FencingToken {
        let ahead = Duration::from_micros(token.saturating_sub(microseconds(now)));
        (self.last, self.expires_at) = (Some(token), now.after(self.retention.saturating_add(ahead)));
        FencingToken::new(token)
    }

    fn raise(&mut self, token: FencingToken, now: Moment) {
        if token > self.draw(now) {
            self.keep(token.get(), now);
        }
    }

    pub(super) fn lose(&mut self) {
        self.last = None;
    }

    /// The last token, unless it was lost or has expired.
    pub(super) fn known(&mut self, now: Moment) -> Option<u64> {
        self.last.take_if(|_| now >= self.expires_at);
        self.last
    }
}

#[cfg(any(test, feature = "test-util"))]
fn microseconds(now: Moment) -> u64 {
    now.as_nanos() / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Moment {
        Moment::from_nanos(us * 1_000)
    }

    #[test]
    fn the_counter_of_a_server_rises_while_its_clock_is_set_back_and_after_it_expires() {
        let mut counter = ServerCounter::new(Duration::from_micros(100));
        let mut draw = |us: u64| counter.draw(at(us)).get();
        assert_eq!((draw(1_000), draw(1_000), draw(1_001), draw(900)), (1_000, 1_001, 1_002, 1_003));
        // Kept until 900 + 100 + 103 ahead; by then the clock is past it.
        assert_eq!((draw(1_102), draw(1_103), draw(5_000)), (1_102, 1_103, 5_000));
    }

    #[test]
    fn a_token_that_is_written_back_raises_the_counter() {
        let mut counter = ServerCounter::new(Duration::from_secs(1));
        counter.raise(FencingToken::new(70), at(50));
        assert_eq!(counter.known(at(60)), Some(70));
        assert_eq!(counter.draw(at(60)).get(), 71);
        counter.raise(FencingToken::new(5), at(60));
        assert_eq!(counter.draw(at(60)).get(), 73);
        counter.lose();
        assert_eq!((counter.known(at(60)), counter.draw(at(80)).get()), (None, 80));
    }
}
