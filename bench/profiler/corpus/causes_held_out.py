"""Causes that no rule was tuned on."""

from __future__ import annotations

from bench.profiler.corpus.cause import Cause

OFTEN = ("step", "update", "episode", "sample")

CAUSES = [
    # --- waiting ---
    Cause(
        "event_wait",
        ("lock", "sleep"),
        slow="stop_requested.wait($size)",
        fixed="stop_requested.is_set()",
        imports="import threading",
        shared="stop_requested = threading.Event()",
        helper="check_stop",
        sizes=(0.0005, 0.02),
        is_whole=False,
        avoid=("pools",),
    ),
    Cause(
        "socket_per_message",
        ("network",),
        slow="""
            with socket.create_connection(MONITOR) as link:
                link.sendall(struct.pack("<d", float($reward)))
                link.recv(1)
        """,
        fixed="$unsent.append(float($reward))",
        imports="import multiprocessing; import socket; import struct; import time",
        shared="""
            def monitor(pipe):
                listener = socket.create_server(("127.0.0.1", 0), backlog=100)
                pipe.send(listener.getsockname())
                while True:
                    peer, _ = listener.accept()
                    with peer:
                        peer.recv(8)
                        time.sleep($size)
                        peer.sendall(b"k")


            to_monitor, from_monitor = multiprocessing.Pipe()
            multiprocessing.Process(target=monitor, args=(from_monitor,), daemon=True).start()
            MONITOR = to_monitor.recv()
        """,
        state="unsent = []",
        helper="report_reward",
        sizes=(0.0002, 0.01),
        is_whole=False,
        kinds=OFTEN,
        avoid=("pools",),
    ),
    Cause(
        "requests_get",
        ("network",),
        slow="""
            level = requests.get(SETTINGS_URL, timeout=10).json()["level"]
            $levels.append(level)
        """,
        fixed="$levels.append(3)",
        imports="import http.server; import multiprocessing; import time; import requests",
        shared="""
            class Curriculum(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    time.sleep($size)
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(b'{"level": 3}')

                def log_message(self, *_):
                    pass


            def serve_curriculum(pipe):
                server = http.server.HTTPServer(("127.0.0.1", 0), Curriculum)
                pipe.send(server.server_port)
                server.serve_forever()


            near, far = multiprocessing.Pipe()
            multiprocessing.Process(target=serve_curriculum, args=(far,), daemon=True).start()
            SETTINGS_URL = f"http://127.0.0.1:{near.recv()}/"
        """,
        state="levels = []",
        helper="current_level",
        sizes=(0.0005, 0.02),
        is_whole=False,
        kinds=OFTEN,
        avoid=("pools",),
    ),
    Cause(
        "open_append_close",
        ("disk", "computing"),
        slow="""
            for part in range($size):
                with open(f"episode_{part}.log", "a") as log_file:
                    log_file.write(f"{$reward}\\n")
        """,
        fixed="""
            for part in range($size):
                $log_files[part].write(f"{$reward}\\n")
        """,
        state='log_files = [open(f"part_{part}.log", "a") for part in range($size)]',
        helper="append_logs",
        sizes=(1, 12),
    ),
    Cause(
        "shell_free_space",
        ("child", "pipe"),
        slow='$free_space.append(os.popen("df -k .").read().split()[-2])',
        fixed='$free_space.append(str(os.statvfs(".").f_bavail))',
        imports="import os",
        state="free_space = []",
        helper="check_disk",
    ),
    Cause(
        "sqlite_commit",
        ("disk",),
        slow="""
            $database.execute("insert into rewards values (?)", (float($reward),))
            $database.commit()
        """,
        fixed="""
            $database.execute("insert into rewards values (?)", (float($reward),))
        """,
        imports="import sqlite3",
        state="""
            database = sqlite3.connect("rewards.db", isolation_level="DEFERRED")
            created = $database.execute("create table if not exists rewards (value real)")
        """,
        helper="insert_reward",
        forms=("inline", "function", "method"),
        avoid=("pools",),
    ),
    Cause(
        "answer_of_slow_thread",
        ("lock",),
        slow="""
            questions.put(float($reward))
            $answers.append(replies.get())
        """,
        fixed="""
            questions.put(float($reward))
            while not replies.empty():
                $answers.append(replies.get())
        """,
        imports="import queue; import threading; import time",
        shared="""
            questions, replies = queue.Queue(), queue.Queue()


            def annotate():
                while True:
                    reward = questions.get()
                    time.sleep($size)
                    replies.put(0.5 * reward)


            threading.Thread(target=annotate, daemon=True).start()
        """,
        state="answers = []",
        helper="annotated",
        sizes=(0.0005, 0.02),
        is_whole=False,
        kinds=OFTEN,
        avoid=("pools",),
    ),
    Cause(
        "pipe_round_trip",
        ("pipe",),
        slow="""
            own_end.send(float($reward))
            $normalised.append(own_end.recv())
        """,
        fixed="$normalised.append(0.5 * float($reward))",
        imports="import multiprocessing; import time",
        shared="""
            def normaliser(pipe):
                while True:
                    value = pipe.recv()
                    time.sleep($size)
                    pipe.send(0.5 * value)


            own_end, its_end = multiprocessing.Pipe()
            multiprocessing.Process(target=normaliser, args=(its_end,), daemon=True).start()
        """,
        state="normalised = []",
        helper="normalise_reward",
        sizes=(0.0002, 0.01),
        is_whole=False,
        kinds=OFTEN,
        avoid=("pools",),
    ),
    # --- written out too often ---
    Cause(
        "savez_compressed",
        ("computing", "disk"),
        slow='np.savez_compressed("state.npz", values=$values_seen, at=$count)',
        imports="import numpy as np",
        state="values_seen = np.sin(np.arange($size))",
        helper="save_state",
        sizes=(100, 100000),
    ),
    Cause(
        "json_history",
        ("computing", "disk"),
        slow="""
            $records.append({"episode": len($records), "reward": float($reward)})
            with open("records.json", "w") as record_file:
                json.dump($records, record_file)
        """,
        fixed="""
            $records.append({"episode": len($records), "reward": float($reward)})
            $record_lines.write(json.dumps($records[-1]) + "\\n")
        """,
        imports="import json",
        state="""
            records = []
            record_lines = open("records.jsonl", "w")
        """,
        helper="write_records",
        grows=True,
    ),
    Cause(
        "copied_log",
        ("disk", "computing"),
        slow="""
            $log.write(f"{len($marks)}, {$reward}\\n" * $size)
            $log.flush()
            $marks.append(shutil.copy("progress.txt", "progress_backup.txt"))
        """,
        fixed="""
            $log.write(f"{len($marks)}, {$reward}\\n" * $size)
            $marks.append("progress.txt")
        """,
        imports="import shutil",
        state="""
            log = open("progress.txt", "w")
            marks = []
        """,
        helper="backup_log",
        sizes=(1, 200),
        grows=True,
    ),
    Cause(
        "mmap_flush",
        ("disk",),
        slow="""
            $ring[$count % len($ring)] = float($reward)
            $ring.flush()
        """,
        fixed="$ring[$count % len($ring)] = float($reward)",
        imports="import numpy as np",
        state='ring = np.memmap("ring.dat", np.float32, "w+", shape=($size,))',
        helper="write_ring",
        sizes=(1000, 100000),
    ),
    # --- drawing ---
    Cause(
        "draw_with_pillow",
        ("computing",),
        slow="""
            picture = Image.new("RGB", ($size, $size), "white")
            pen = ImageDraw.Draw(picture)
            for x in range(0, $size, 8):
                pen.line((x, 0, $size // 2, $size), fill="black", width=2)
            $pictures.append(np.asarray(picture))
        """,
        imports="import collections; import numpy as np; from PIL import Image, ImageDraw",
        state="pictures = collections.deque(maxlen=8)",
        helper="draw_picture",
        sizes=(32, 600),
    ),
    Cause(
        "figure_each_time",
        ("computing", "disk"),
        slow="""
            $curve.append(float($reward))
            figure, axes = plt.subplots()
            axes.plot($curve[-$size:])
            figure.savefig("curve.png")
            plt.close(figure)
        """,
        fixed="$curve.append(float($reward))",
        imports="import matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot as plt",
        state="curve = []",
        helper="plot_curve",
        sizes=(100, 1000),
        kinds=("update", "episode", "step"),
        avoid=("pools", "asyncio"),
    ),
    # --- environments ---
    Cause(
        "level_parsed_on_reset",
        ("computing",),
        slow='$walls[:] = yaml.safe_load(LEVEL)["walls"]',
        fixed="$walls[:] = WALLS",
        imports="import yaml",
        shared="""
            WALLS = [[i, i + 1] for i in range($size)]
            LEVEL = "walls:\\n" + "".join(f"  - [{x}, {y}]\\n" for x, y in WALLS)
        """,
        state="walls = []",
        helper="load_level",
        sizes=(1, 100),
        kinds=("reset", "episode"),
    ),
    Cause(
        "stacked_wrapper",
        ("computing",),
        slow="""
            $last_seen.append(np.asarray($obs, dtype=np.float64))
            middle, spread = np.stack($last_seen).mean(axis=0), np.stack($last_seen).std(axis=0)
            $scale_of[0] = float(np.linalg.norm(np.concatenate([middle, spread])))
        """,
        imports="import collections; import numpy as np",
        state="""
            last_seen = collections.deque(maxlen=$size)
            scale_of = [1.0]
        """,
        helper="feature_scale",
        sizes=(2, 60),
        kinds=("step", "env"),
    ),
    Cause(
        "obstacle_loops",
        ("computing",),
        slow="""
            nearest = 1e9
            for ox, oy in $obstacles:
                distance = ((ox - 0.3) ** 2 + (oy - 0.7) ** 2) ** 0.5
                if distance < nearest:
                    nearest = distance
        """,
        fixed="nearest = $nearest_known",
        state="""
            obstacles = [(0.01 * i, 1.0 - 0.01 * i) for i in range($size)]
            nearest_known = min(((x - 0.3) ** 2 + (y - 0.7) ** 2) ** 0.5 for x, y in $obstacles)
        """,
        helper="collision_distance",
        sizes=(5, 3000),
        kinds=("env", "step", "worker", "reset"),
    ),
    Cause(
        "lookahead_copies",
        ("computing",),
        slow="""
            for _ in range($size):
                imagined = copy.deepcopy($planner_env)
                imagined.step(0)
        """,
        imports="import copy; import gymnasium as gym",
        state="""
            planner_env = gym.make("CartPole-v1")
            first_state = $planner_env.reset(seed=0)
        """,
        helper="look_ahead",
        sizes=(1, 4),
    ),
    # --- data walked or copied ---
    Cause(
        "membership_in_list",
        ("computing",),
        slow="""
            key = $count * 7 % $size
            if key not in $visited:
                $visited.append(key)
        """,
        fixed="""
            key = $count * 7 % $size
            $visited_set.add(key)
        """,
        state="""
            visited = list(range($size))
            visited_set = set($visited)
        """,
        helper="visit",
        sizes=(500, 100000),
    ),
    Cause(
        "concatenate_growing",
        ("computing",),
        slow="$stored[0] = np.concatenate([$stored[0], np.full($size, float($reward))])",
        fixed="$chunks.append(np.full($size, float($reward)))",
        imports="import numpy as np",
        state="""
            stored = [np.zeros(0)]
            chunks = []
        """,
        helper="store",
        sizes=(20, 2000),
        grows=True,
    ),
    Cause(
        "deepcopy_network",
        ("computing",),
        slow="$best_copy[0] = [copy.deepcopy($net) for _ in range($size)][-1]",
        imports="import copy; import torch",
        state="best_copy = [None]",
        helper="keep_best",
        sizes=(1, 8),
        kinds=("update", "episode", "step"),
    ),
    Cause(
        "percentiles_of_all",
        ("computing",),
        slow="""
            $returns_seen.append(float($reward))
            low_end, high_end = np.percentile($returns_seen, [5, 95])
            $bands_seen.append(high_end - low_end)
        """,
        fixed="""
            $returns_seen.append(float($reward))
            if len($returns_seen) % 2000 == 0:
                low_end, high_end = np.percentile($returns_seen[-2000:], [5, 95])
                $bands_seen.append(high_end - low_end)
        """,
        imports="import numpy as np",
        state="""
            returns_seen = []
            bands_seen = []
        """,
        helper="return_band",
        grows=True,
    ),
    Cause(
        "tuple_keys",
        ("computing",),
        slow="""
            cell = tuple(round(float(x), 1) for x in np.tile(np.asarray($obs).ravel(), $size))
            $counts_of_cells[cell] = $counts_of_cells.get(cell, 0) + 1
        """,
        fixed="""
            cell = np.round(np.asarray($obs), 1).tobytes()
            $counts_of_cells[cell] = $counts_of_cells.get(cell, 0) + 1
        """,
        imports="import numpy as np",
        state="counts_of_cells = {}",
        helper="count_cell",
        sizes=(2, 200),
    ),
    # --- O(N) sampling ---
    Cause(
        "sample_of_deque",
        ("computing",),
        slow="""
            picked = random.Random(3).sample(list($memory), 16)
            $memory.append(picked[0])
        """,
        fixed="""
            picked = $memory_rng.sample(range($size), 16)
            $memory.append(picked[0])
        """,
        imports="import collections; import random",
        state="""
            memory = collections.deque(range($size), maxlen=$size)
            memory_rng = random.Random(3)
        """,
        helper="replay_draw",
        sizes=(1000, 500000),
        kinds=("update", "sample", "episode", "step"),
    ),
    Cause(
        "accumulated_weights",
        ("computing",),
        slow="""
            edges = list(itertools.accumulate($loads))
            where = bisect.bisect($edges_of or edges, ($count * 37 % 100) / 100 * edges[-1])
            $loads[min(where, $size - 1)] = 0.5 + where % 7
        """,
        fixed="""
            where = $count * 37 % $size
            $loads[where] = 0.5 + where % 7
        """,
        imports="import bisect; import itertools",
        state="""
            loads = [1.0] * $size
            edges_of = []
        """,
        helper="pick_by_weight",
        sizes=(50, 30000),
        kinds=("update", "sample", "episode", "step"),
    ),
    Cause(
        "shuffled_index_list",
        ("computing",),
        slow="""
            random.Random($count).shuffle($order_of_rows)
            $first_rows[:] = $order_of_rows[:32]
        """,
        fixed="$first_rows[:] = random.Random($count).sample(range($size), 32)",
        imports="import random",
        state="""
            order_of_rows = list(range($size))
            first_rows = []
        """,
        helper="shuffle_rows",
        sizes=(100, 20000),
        kinds=("update", "sample", "episode", "step"),
    ),
    # --- other threads, modes left on ---
    Cause(
        "json_thread",
        ("interpreter", "computing"),
        slow="threading.Thread(target=export_forever, daemon=True).start()",
        slow_globals="""
            def export_forever():
                rows = [{"x": i, "y": [i] * 5} for i in range(400)]
                while True:
                    for _ in range(30):
                        text = "\\n".join(",".join(str(v) for v in row["y"]) for row in rows)
                        rows[0]["x"] = len(text)
                    time.sleep($size)
        """,
        fixed_globals="""
            def export_forever():
                rows = [{"x": i, "y": [i] * 5} for i in range(400)]
                while True:
                    for _ in range(30):
                        text = "\\n".join(",".join(str(v) for v in row["y"]) for row in rows)
                        rows[0]["x"] = len(text)
                    time.sleep(2.0)
        """,
        fixed="threading.Thread(target=export_forever, daemon=True).start()",
        imports="import threading; import time",
        kinds=("setup",),
        forms=("inline",),
        avoid=("pools", "jax"),
        words=("interpreter lock", "interpreter's lock", "export_forever"),
        sizes=(0.005, 0.02),
        is_whole=False,
        expected=1.8,
    ),
    Cause(
        "asyncio_debug",
        ("computing",),
        slow="asyncio.get_running_loop().set_debug(True)",
        imports="import asyncio",
        kinds=("asetup",),
        styles=("asyncio",),
        forms=("inline",),
        words=("debug",),
        expected=1.6,
    ),
    Cause(
        "tracemalloc_on",
        ("computing",),
        slow="tracemalloc.start($size)",
        imports="import tracemalloc",
        kinds=("setup",),
        forms=("inline",),
        sizes=(1, 3),
        words=("tracemalloc",),
        expected=1.8,
    ),
    Cause(
        "trace_function",
        ("computing",),
        slow="sys.settrace(follow)",
        slow_globals="""
            lines_run = [0]


            def follow(frame, event, arg):
                lines_run[0] += 1
                return None
        """,
        imports="import sys",
        kinds=("setup",),
        forms=("inline",),
        words=("settrace", "trace function", "follow"),
        expected=1.5,
    ),
    # --- tensors and networks ---
    Cause(
        "tensor_of_lists",
        ("computing",),
        slow="""
            nested = torch.FloatTensor(np.tile(np.asarray($obs).ravel(), ($size, 1)).tolist())
            $largest.append(float(nested.max()))
        """,
        fixed="""
            nested = torch.from_numpy(np.tile(np.asarray($obs).ravel(), ($size, 1)))
            $largest.append(float(nested.max()))
        """,
        imports="import numpy as np; import torch",
        state="largest = []",
        helper="largest_feature",
        sizes=(4, 300),
    ),
    Cause(
        "returns_by_element",
        ("computing",),
        slow="""
            summed_up = np.zeros($size)
            for i in range($size - 2, -1, -1):
                summed_up[i] = $gains[i] + 0.99 * summed_up[i + 1]
            $heads.append(summed_up[0])
        """,
        fixed="$heads.append(float($gains @ $discounts))",
        imports="import numpy as np",
        state="""
            gains = np.linspace(0.0, 1.0, $size)
            discounts = 0.99 ** np.arange($size)
            heads = []
        """,
        helper="compute_returns",
        sizes=(8, 5000),
    ),
    Cause(
        "items_in_a_loop",
        ("computing",),
        slow="""
            norm_of_all = 0.0
            for parameter in $net.parameters():
                flat = parameter.detach().reshape(-1)[:$size]
                for weight in flat:
                    norm_of_all += weight.item() ** 2
        """,
        fixed="""
            norm_of_all = 0.0
            for parameter in $net.parameters():
                norm_of_all += float(parameter.detach().reshape(-1)[:$size].pow(2).sum())
        """,
        imports="import torch",
        helper="weight_norm",
        sizes=(4, 200),
        kinds=("update", "episode", "step"),
    ),
    Cause(
        "polyak_by_name",
        ("computing",),
        slow="""
            for _ in range($size):
                own_state = $net.state_dict()
                for k, v in own_state.items():
                    $averages[k] = 0.99 * $averages.get(k, v).clone() + 0.01 * v.clone()
        """,
        fixed="""
            for _ in range($size):
                own_state = [one.detach() for one in $net.parameters()]
            if not $averages:
                $averages["all"] = [one.clone() for one in own_state]
            torch._foreach_lerp_($averages["all"], own_state, 0.01)
        """,
        imports="import torch",
        state="averages = {}",
        helper="average_weights",
        sizes=(1, 6),
        kinds=("update", "episode"),
    ),
    Cause(
        "traced_anew",
        ("computing",),
        slow="""
            head = torch.jit.trace($head_net, torch.zeros(1, $size))
            $head_outputs.append(float(head(torch.ones(1, $size))[0, 0]))
        """,
        fixed="$head_outputs.append(float($head_net(torch.ones(1, $size))[0, 0]))",
        imports="import torch; import warnings; warnings.filterwarnings('ignore')",
        state="""
            head_net = torch.nn.Sequential(torch.nn.Linear($size, 16), torch.nn.Tanh())
            head_outputs = []
        """,
        helper="head_output",
        sizes=(8, 16),
        kinds=("update", "episode"),
    ),
    Cause(
        "jitted_anew",
        ("computing",),
        slow="""
            shrink = jax.jit(lambda x: jnp.tanh(x) * 0.5)
            $shrunk.append(float(shrink(jnp.ones($size)).sum()))
        """,
        fixed="$shrunk.append(float(np.tanh(np.ones($size)).sum() * 0.5))",
        imports="import jax; import jax.numpy as jnp; import numpy as np",
        state="shrunk = []",
        helper="shrink_targets",
        sizes=(8, 64),
        styles=("jax",),
    ),
    Cause(
        "shapes_that_vary",
        ("computing",),
        slow="""
            padded = jnp.zeros(len($tails) % 997 + $size) + float($reward)
            $tails.append(float(jnp.cumsum(padded)[-1]))
        """,
        fixed="$tails.append(float($reward) * (len($tails) % 997 + $size))",
        imports="import jax.numpy as jnp",
        state="tails = []",
        helper="tail_sum",
        sizes=(4, 16),
        styles=("jax",),
    ),
    # --- text, logs, settings ---
    Cause(
        "printed_steps",
        ("computing", "disk"),
        slow="""
            for name in $metric_names:
                print(f"{name:>20}: {float($reward):12.6f}", file=$console, flush=True)
        """,
        fixed="$kept_rewards.append(float($reward))",
        state="""
            metric_names = [f"metric/{i}" for i in range($size)]
            console = open("console.txt", "w")
            kept_rewards = []
        """,
        helper="print_metrics",
        sizes=(1, 60),
    ),
    Cause(
        "loguru_debug",
        ("computing", "disk"),
        slow="""
            for part in range($size):
                logger.debug("part {} of {}: {}", part, $size, $reward)
        """,
        imports="from loguru import logger",
        shared="""
            logger.remove()
            logger.add("debug.log", level="DEBUG")
        """,
        helper="log_parts",
        sizes=(1, 20),
        avoid=("pools",),
    ),
    Cause(
        "validated_settings",
        ("computing",),
        slow="""
            options = Options(rates=[0.1] * $size, names=[f"n{i}" for i in range($size)])
            $rates_used.append(options.model_copy(deep=True).rates[0])
        """,
        fixed="$rates_used.append(0.1)",
        imports="import pydantic",
        shared="""
            class Options(pydantic.BaseModel):
                rates: list[float]
                names: list[str]
        """,
        state="rates_used = []",
        helper="current_options",
        sizes=(2, 200),
    ),
    Cause(
        "digest_of_observations",
        ("computing",),
        slow="""
            digest = hashlib.sha256(np.tile(np.asarray($obs), $size).tobytes()).hexdigest()
            $digests.append(digest)
        """,
        fixed="$digests.append($count)",
        imports="import hashlib; import numpy as np",
        state="digests = []",
        helper="observation_key",
        sizes=(20, 5000),
    ),
    Cause(
        "dates_parsed",
        ("computing",),
        slow="""
            days = [datetime.datetime.strptime(day, "%Y-%m-%d").toordinal() for day in $calendar]
            $latest_days.append(max(days))
        """,
        fixed="$latest_days.append($last_day)",
        imports="import datetime",
        state="""
            calendar = [f"2021-{1 + i % 12:02}-{1 + i % 28:02}" for i in range($size)]
            last_day = 738000
            latest_days = []
        """,
        helper="latest_day",
        sizes=(1, 100),
    ),
    Cause(
        "literal_schedules",
        ("computing",),
        slow='rates_now = ast.literal_eval($schedule)["rates"]',
        fixed="rates_now = $schedule_rates",
        imports="import ast",
        state="""
            schedule_rates = [round(0.1 / (i + 1), 6) for i in range($size)]
            schedule = repr({"rates": $schedule_rates})
        """,
        helper="read_schedule",
        sizes=(2, 300),
    ),
    Cause(
        "inspected_stack",
        ("computing",),
        slow="""
            callers = [inspect.getframeinfo(sys._getframe()).function for _ in range($size)]
            $call_sites.add(callers[-1])
        """,
        fixed='$call_sites.add("train")',
        imports="import inspect; import sys",
        state="call_sites = set()",
        helper="note_call_site",
        sizes=(1, 10),
    ),
    Cause(
        "formatted_tracebacks",
        ("computing",),
        slow="""
            for name in $optional_keys:
                try:
                    $extras[name] += float($reward)
                except KeyError:
                    $last_error[0] = traceback.format_exc()
        """,
        fixed="""
            for name in $optional_keys:
                if name in $extras:
                    $extras[name] += float($reward)
        """,
        imports="import traceback",
        state="""
            optional_keys = [f"extra_{i}" for i in range($size)]
            extras = {}
            last_error = [""]
        """,
        helper="add_extras",
        sizes=(1, 10),
    ),
    Cause(
        "fractions",
        ("computing",),
        slow="""
            exact = fractions.Fraction(0)
            for k in range(1, $size + 1):
                exact += fractions.Fraction(1, k)
            $shares.append(float(exact))
        """,
        fixed="""
            exact = 0.0
            for k in range(1, $size + 1):
                exact += 1 / k
            $shares.append(exact)
        """,
        imports="import fractions",
        state="shares = []",
        helper="harmonic_share",
        sizes=(2, 60),
    ),
    Cause(
        "memory_from_proc",
        ("computing", "disk"),
        slow="""
            with open("/proc/self/smaps") as maps:
                resident = sum(int(row.split()[1]) for row in maps if row.startswith("Rss:"))
            $resident_sizes.append(resident)
        """,
        fixed="$resident_sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)",
        imports="import resource",
        state="resident_sizes = []",
        helper="memory_in_use",
    ),
    Cause(
        "bootstrap_interval",
        ("computing",),
        slow="""
            resampled = $lots.choice($pool_of_returns, ($size, 50)).mean(axis=1)
            $widths.append(float(np.ptp(np.sort(resampled))))
        """,
        fixed="$widths.append(4.0 * float($pool_of_returns.std()) / 50**0.5)",
        imports="import numpy as np",
        state="""
            lots = np.random.default_rng(8)
            pool_of_returns = np.linspace(0.0, 1.0, 50)
            widths = []
        """,
        helper="confidence",
        sizes=(10, 2000),
    ),
    # --- workers ---
    Cause(
        "tiny_pool_tasks",
        ("pipe", "lock", "child", "computing"),
        slow="""
            squares = list(crew.map(square, range($size)))
            $checks_done.append(sum(squares))
        """,
        fixed="""
            squares = [square(k) for k in range($size)]
            $checks_done.append(sum(squares))
        """,
        imports="from concurrent.futures import ProcessPoolExecutor",
        shared="""
            crew = ProcessPoolExecutor(2)


            def square(k):
                return k * k
        """,
        state="checks_done = []",
        helper="check_squares",
        sizes=(2, 100),
        kinds=("update", "episode", "step"),
        avoid=("pools", "jax", "asyncio"),
    ),
    Cause(
        "thread_per_item",
        ("lock", "interpreter", "computing"),
        slow="""
            starters = [threading.Thread(target=$noted.append, args=(k,)) for k in range($size)]
            for one in starters:
                one.start()
            for one in starters:
                one.join()
        """,
        fixed="$noted.extend(range($size))",
        imports="import collections; import threading",
        state="noted = collections.deque(maxlen=1000)",
        helper="note_in_threads",
        sizes=(1, 20),
        avoid=("pools",),
    ),
]
