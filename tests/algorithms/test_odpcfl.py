from rdpcfl_tff.algorithms.odpcfl import ODPCFL


def test_it_pays_for_no_selection_and_no_full_batch():
    schedule = ODPCFL((0, 1, 1), rounds=5, local_epochs=2, batch_size=32).schedule(records=800)
    assert schedule.selections == 0
    assert schedule.first_batch_size == schedule.batch_size == 32
    assert (schedule.rounds, schedule.local_epochs) == (5, 2)
