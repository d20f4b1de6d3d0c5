"""Sequence numbers tell loss, repetition and restart apart."""

from node_agent.policy.kv_sequence import Action, SequenceTracker


def test_messages_in_order_are_applied() -> None:
    tracker = SequenceTracker()
    assert [tracker.live(number) for number in range(3)] == [Action.APPLY] * 3


def test_a_jump_calls_for_repair_and_replayed_messages_close_it() -> None:
    tracker = SequenceTracker()
    tracker.live(0)
    assert tracker.live(4) is Action.REPAIR
    assert tracker.next_sequence == 1
    assert [tracker.replayed(number) for number in (1, 2, 3, 4)] == [True] * 4
    assert tracker.live(5) is Action.APPLY


def test_what_a_replay_brought_is_skipped_when_it_also_arrives_live() -> None:
    tracker = SequenceTracker()
    for number in range(5):
        tracker.replayed(number)
    assert [tracker.live(number) for number in (3, 4, 5)] == [Action.SKIP, Action.SKIP, Action.APPLY]


def test_a_repeated_message_is_skipped() -> None:
    tracker = SequenceTracker()
    tracker.live(0)
    tracker.live(1)
    assert tracker.live(1) is Action.SKIP


def test_a_number_that_goes_back_means_that_the_publisher_began_anew() -> None:
    tracker = SequenceTracker()
    for number in range(5):
        tracker.live(number)
    assert tracker.live(0) is Action.RESTART


def test_a_full_replay_may_begin_late_but_a_repair_may_not() -> None:
    joining = SequenceTracker()
    assert joining.replayed(700)
    assert joining.next_sequence == 701
    repairing = SequenceTracker()
    repairing.live(0)
    assert not repairing.replayed(700)
    assert repairing.next_sequence == 1
