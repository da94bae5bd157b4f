//! Which requests are written together, of tasks that were answered together.

/// Tasks that were just woken together and may send a request.
#[derive(Default)]
pub(super) struct WokenTasks {
    /// How many of them share a write.
    group: usize,
    /// How many of the present group are still to come. Until then, or until the flush task runs, nothing is written.
    expected: usize,
    /// How many are in later groups.
    later: usize,
}

/// Into how many groups the tasks are divided.
const GROUPS: usize = 4;

impl WokenTasks {
    pub(super) fn new(count: usize) -> Self {
        let group = count.div_ceil(GROUPS);
        WokenTasks { group, expected: group, later: count - group }
    }

    /// A request was made. True if it has to be written now, with those before it.
    pub(super) fn writes_after_request(&mut self) -> bool {
        self.expected = self.expected.saturating_sub(1);
        if self.expected > 0 {
            return false;
        }
        self.expected = self.group.min(self.later);
        self.later -= self.expected;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn woken_tasks_write_in_groups_and_after_them_everyone_alone() {
        let writes = |count: usize| {
            let mut woken = WokenTasks::new(count);
            (0..count + 2).map(|_| woken.writes_after_request()).collect::<Vec<_>>()
        };
        assert_eq!(writes(3), [true; 5]);
        assert_eq!(writes(8)[..8], [false, true, false, true, false, true, false, true]);
        assert_eq!(writes(9), [false, false, true, false, false, true, false, false, true, true, true]);
        // The last group is smaller.
        assert_eq!(writes(10)[7..], [false, true, true, true, true]);
        assert!(WokenTasks::default().writes_after_request());
    }
}
