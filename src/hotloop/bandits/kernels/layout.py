"""The layout of the memory that compiled code shares.

A block is 256 runs. Arrays are (…, LANES), so that a loop over lanes reads neighbors. A block has a
*frame*, an *environment* and one *agent* or several. Each is a memory area, passed by its address,
that begins with 64-bit words. The constants below are the indices of these words.

A part of an environment or an agent is called as `part(address, step)`, with step counted from 0.
"""

from __future__ import annotations

LANES = 256
WINDOW = 8  # steps for which an environment prepares its random numbers at once
ROW_GROUP = 5  # rows of scores compared in registers at once; ROWS is a multiple of it
WORDS = 64  # at the head of each memory area
HEAD = WORDS * 8

# The frame. Addresses of the current step's data:
VALUES, NOISE, BEST, BEST_ARM, POLICY, CONTEXT = range(6)
FIRST_RUN, KEY_LOW, KEY_HIGH, NUM_ARMS, NUM_STEPS, NUM_RUNS, DIMENSION = range(6, 13)
NEEDS_POLICY_WORDS, STEPS_PER_POINT, LATE_START = range(13, 16)
FAULT, FAULT_LANE, FAULT_STEP, FAULT_VALUE = range(16, 20)  # the value is a float64
ENVIRONMENT, AGENTS, NUM_AGENTS, IN_HINDSIGHT, ROWS, NEEDS_UNIT, CURRENT_LANE = range(20, 27)
FAULT_ARM, FAULT_REWARD, FAULT_RANGE, FAULT_AGENT_RAISED, FAULT_ENVIRONMENT_RAISED = range(1, 6)
# The frame's arrays, by offset in bytes.
ARM = HEAD  # int32: the chosen arm
VALUE = ARM + 4 * LANES  # float32: that arm's true value
REWARD = VALUE + 4 * LANES  # float32
TOP = REWARD + 4 * LANES  # float32: the best score
COUNT = TOP + 4 * LANES  # int32: number of arms with that score
WORK = COUNT + 4 * LANES  # uint32 or float32, (4, LANES)
NORMALS = WORK + 16 * LANES  # float32, (4, LANES)
SUMS = NORMALS + 16 * LANES  # float64, (6, 32)
POLICY_WORDS = SUMS + 6 * 32 * 8  # uint32, (WINDOW, LANES)
FRAME_BYTES = POLICY_WORDS + WINDOW * 4 * LANES

# An environment; PARAMETERS are float64 or int64.
FRAME = 0  # agents have it too
START, ADVANCE, GIVE_REWARD = range(1, 4)  # addresses of the parts
VALUES_AT, VALUES_STRIDE, BEST_AT, BEST_STRIDE = range(4, 8)
NOISE_AT, CONTEXT_AT, CONTEXT_STRIDE, BEST_ARM_AT = range(8, 12)
STATE = 12
PARAMETERS = 24

# An agent.
CHOOSE, UPDATE = 4, 5  # addresses of the parts, besides START
CURVE, PULLS = 6, 7  # float64 (6, P); int64 (P, k) or 0
RECORD = 8  # address of RECORD_BYTES, see recording.py
