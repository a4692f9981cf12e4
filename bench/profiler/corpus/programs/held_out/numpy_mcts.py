# type: ignore
"""Monte Carlo tree search that plays Connect Three on a small board against itself."""

import argparse
import math
import time

import numpy as np

#: length --games 75
#: imports

COLUMNS, ROWS = 5, 4

#: globals


def lines():
    found = []
    for x in range(COLUMNS):
        for y in range(ROWS):
            for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1)):
                cells = [(x + k * dx, y + k * dy) for k in range(3)]
                if all(0 <= a < COLUMNS and 0 <= b < ROWS for a, b in cells):
                    found.append(sum(1 << (a * ROWS + b) for a, b in cells))
    return found


LINES = lines()


class Board:
    __slots__ = ("heights", "sides", "turn")

    def __init__(self, sides=(0, 0), heights=(0,) * COLUMNS, turn=0):
        self.sides, self.heights, self.turn = sides, heights, turn

    def moves(self):
        return [x for x in range(COLUMNS) if self.heights[x] < ROWS]

    def play(self, x):
        mine = self.sides[self.turn] | 1 << (x * ROWS + self.heights[x])
        sides = (mine, self.sides[1]) if self.turn == 0 else (self.sides[0], mine)
        heights = (*self.heights[:x], self.heights[x] + 1, *self.heights[x + 1 :])
        #: env count=sum(heights)
        return Board(sides, heights, 1 - self.turn)

    def won(self):
        stones = self.sides[1 - self.turn]
        return any(stones & line == line for line in LINES)


class Node:
    __slots__ = ("board", "children", "total", "untried", "visits")

    def __init__(self, board):
        self.board, self.children = board, {}
        self.untried = [] if board.won() else board.moves()
        self.visits, self.total = 0, 0.0

    def best(self):
        log = math.log(self.visits)
        return max(
            self.children.values(),
            key=lambda child: child.total / child.visits + 1.4 * math.sqrt(log / child.visits),
        )


def playout(board, rng):
    first = board.turn
    randoms = rng.random(COLUMNS * ROWS).tolist()
    for number in randoms:
        if board.won():
            return 1.0 if board.turn == first else -1.0
        moves = board.moves()
        if not moves:
            break
        board = board.play(moves[int(number * len(moves))])
    return 0.0


def search(board, rng, simulations):
    root = Node(board)
    for number in range(simulations):
        node, path = root, [root]
        while not node.untried and node.children:
            node = node.best()
            path.append(node)
        if node.untried:
            move = node.untried.pop()
            node.children[move] = Node(node.board.play(move))
            node = node.children[move]
            path.append(node)
        value = playout(node.board, rng)
        for one in reversed(path):
            one.visits += 1
            one.total += value
            value = -value
        #: update count=number reward=value
    return max(root.children, key=lambda move: root.children[move].visits)


def main(games, simulations=300):
    rng = np.random.default_rng(0)
    results = []
    for game in range(games):
        board, length = Board(), 0
        while not board.won() and board.moves():
            board = board.play(search(board, rng, simulations))
            length += 1
            #: step count=length reward=float(board.turn)
        results.append(length)
        #: episode count=game reward=float(length) steady=yes
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--games", type=int, default=75)
    args = parser.parse_args()
    #: setup
    start = time.perf_counter()
    lengths = main(args.games)
    print(f"mean length {np.mean(lengths):.1f}")
    print(f"loop {time.perf_counter() - start:.3f} s")
