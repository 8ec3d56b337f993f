"""A policy that remembers: a bandit that tries every k and keeps to the one that progresses fastest (UCB1)."""

import numpy as np

from kofn import Policy

HOLD = 6  # iterations that a k is judged by, after SETTLE others
SETTLE = 2
FORGET = 0.9  # what a trial weighs after the next one: stragglers change
CURIOSITY = 0.3


class Bandit(Policy):
    """The reward of a k: what its iterations are worth, over the time that they took."""

    def __init__(self, workers):
        super().__init__(workers)
        self.trials, self.reward = np.zeros(workers), np.zeros(workers)
        self.k, self.since = workers, 0

    def choose(self, forecast):
        seen = forecast.history
        held = (seen.iteration > self.since + SETTLE) & (seen.k == self.k)
        if self.k <= forecast.workers and held.sum() <= HOLD:
            return self.k
        if held.sum() > 1:
            seconds = np.diff(seen.ended_s[held]).mean()
            self.trials *= FORGET
            self.reward *= FORGET
            self.trials[self.k - 1] += 1
            self.reward[self.k - 1] += forecast.worth[min(self.k, forecast.workers) - 1] / seconds
        mean = self.reward / np.maximum(self.trials, 1e-9)
        bonus = CURIOSITY * mean.max() * np.sqrt(np.log(1 + self.trials.sum()) / np.maximum(self.trials, 1e-3))
        self.k = int(np.argmax((mean + bonus)[: forecast.workers])) + 1
        self.since = int(seen.iteration[-1])
        return self.k
