"""What a training leaves behind in its process."""

import gc
import signal

from lightning.pytorch import Trainer

from tests.experiments.harness.test_training import train


def test_nothing_is_left_of_a_finished_training(tmp_path):
    """A sweep trains many networks in one process; a signal handler of Lightning's would hold each of them."""

    def trainers():
        gc.collect()
        return sum(type(one) is Trainer for one in gc.get_objects())

    handlers, before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], trainers()
    train(tmp_path)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert trainers() == before
