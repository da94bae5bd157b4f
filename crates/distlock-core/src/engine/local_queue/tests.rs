//! Order, cancellation and outages in the local wait queue.

use super::*;
use crate::error::ErrorKind;
use crate::resource::Kind;

fn resource() -> Resource {
    Resource::new(Kind::Mutex, "a").unwrap()
}

fn head_of(entry: Joined) -> QueueHead {
    match entry {
        Joined::Head(head) => head,
        _ => panic!("expected an empty queue"),
    }
}

fn receiver_of(entry: Joined) -> oneshot::Receiver<QueueMessage> {
    match entry {
        Joined::Waiting(receiver) => receiver,
        _ => panic!("expected to wait behind another task"),
    }
}

fn received_head(receiver: &mut oneshot::Receiver<QueueMessage>) -> Option<QueueHead> {
    match receiver.try_recv() {
        Ok(QueueMessage::Head(head)) => Some(head),
        _ => None,
    }
}

#[test]
fn the_head_passes_in_order_and_skips_cancelled_waiters() {
    let (queues, resource) = (Arc::new(LocalQueues::default()), resource());
    let head = head_of(queues.join(&resource));
    let cancelled = receiver_of(queues.join(&resource));
    let mut second = receiver_of(queues.join(&resource));
    let mut third = receiver_of(queues.join(&resource));
    drop(cancelled);
    head.release_to_next(true);
    let received = received_head(&mut second).unwrap();
    assert!(received.no_overtaking && third.try_recv().is_err());
    drop(received);
    assert!(!received_head(&mut third).unwrap().no_overtaking);
    head_of(queues.join(&resource));
}

#[test]
fn a_head_that_was_sent_but_never_received_passes_to_the_next_waiter() {
    let (queues, resource) = (Arc::new(LocalQueues::default()), resource());
    let head = head_of(queues.join(&resource));
    let second = receiver_of(queues.join(&resource));
    let mut third = receiver_of(queues.join(&resource));
    drop(head);
    drop(second);
    assert!(third.try_recv().is_ok());
}

#[test]
fn single_attempts_behind_an_unanswered_head_get_its_first_answer() {
    let (queues, resource, now) = (Arc::new(LocalQueues::default()), resource(), Moment::from_nanos(1));
    let head = head_of(queues.join_once(&resource, now, true));
    let mut single = receiver_of(queues.join_once(&resource, now, false));
    assert!(single.try_recv().is_err());
    head.busy(now);
    assert!(matches!(single.try_recv(), Ok(QueueMessage::Busy)));
    assert!(matches!(queues.join_once(&resource, now.after(RECENT), true), Joined::Busy));
    let later = now.after(RECENT + Duration::from_nanos(1));
    let Joined::Probe(probe) = queues.join_once(&resource, later, true) else { panic!("expected a probe") };
    // Only one task probes at a time.
    let (mut one, mut two) =
        (receiver_of(queues.join_once(&resource, later, true)), receiver_of(queues.join(&resource)));
    drop(probe);
    assert!(matches!(one.try_recv(), Ok(QueueMessage::Retry)) && two.try_recv().is_err());
    let Joined::Probe(probe) = queues.join_once(&resource, later, true) else { panic!("expected a probe") };
    probe.answered(later);
    assert!(matches!(queues.join_once(&resource, later, true), Joined::Busy));
    drop(head);
    assert!(received_head(&mut two).is_some());
}

#[test]
fn an_outage_fails_only_the_waiters_that_saw_all_of_it() {
    let (queues, resource) = (Arc::new(LocalQueues::default()), resource());
    let error = Error::new(ErrorKind::Unavailable, "down");
    let head = head_of(queues.join(&resource));
    let mut early = receiver_of(queues.join(&resource));
    head.failed(&error);
    assert!(queues.last_error(&resource).is_some());
    head.busy(Moment::from_nanos(1));
    assert!(queues.last_error(&resource).is_none());
    head.failed(&error);
    let mut late = receiver_of(queues.join(&resource));
    head.fail_waiters(&error);
    assert!(matches!(early.try_recv(), Ok(QueueMessage::Failed(_))));
    let next = received_head(&mut late).unwrap();
    assert!(queues.last_error(&resource).is_none(), "the next waiter asks the store itself");
    drop(next);
    head_of(queues.join(&resource));
}

#[test]
fn cancelled_waiters_do_not_accumulate() {
    let (queues, resource, now) = (Arc::new(LocalQueues::default()), resource(), Moment::from_nanos(1));
    let _head = head_of(queues.join(&resource));
    let kept = receiver_of(queues.join(&resource));
    for _ in 0..10_000 {
        drop(queues.join(&resource));
        drop(queues.join_once(&resource, now, false));
    }
    let all = queues.lock();
    let waiters = all.waiters.get(resource.name()).unwrap();
    let remembered = [waiters.waiting.len(), waiters.once.len()];
    assert!(remembered.iter().all(|count| *count <= 32), "{remembered:?}");
    drop(kept);
}

#[test]
fn a_queue_without_waiters_keeps_a_name_and_nothing_else() {
    let (queues, resource) = (Arc::new(LocalQueues::default()), resource());
    let head = head_of(queues.join(&resource));
    assert!(queues.lock().waiters.is_empty());
    let waiting = receiver_of(queues.join(&resource));
    drop((head, waiting));
    let all = queues.lock();
    assert!(all.holders.is_empty() && all.waiters.is_empty(), "{all:?}");
}
