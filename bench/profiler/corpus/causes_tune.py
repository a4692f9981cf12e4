"""Causes of the half on which rules may be tuned."""

from __future__ import annotations

from bench.profiler.corpus.cause import Cause

OFTEN = ("step", "update", "episode", "sample")
SERVER = """
    class Metrics(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep($size)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass


    def serve_metrics(pipe):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
        pipe.send(server.server_port)
        server.serve_forever()


    ours, theirs = multiprocessing.Pipe()
    multiprocessing.Process(target=serve_metrics, args=(theirs,), daemon=True).start()
    METRICS_URL = f"http://127.0.0.1:{ours.recv()}/metrics"
"""

CAUSES = [
    # --- waiting ---
    Cause(
        "sleep",
        ("sleep",),
        slow="time.sleep($size)",
        imports="import time",
        helper="pace",
        sizes=(0.0005, 0.02),
        is_whole=False,
    ),
    Cause(
        "http_post",
        ("network",),
        slow="""
            line = json.dumps({"reward": float($reward), "value": 0.0}).encode()
            urllib.request.urlopen(METRICS_URL, data=line, timeout=10).read()
        """,
        fixed="""
            $lines.append({"reward": float($reward), "value": 0.0})
            if len($lines) == 5000:
                line = json.dumps($lines).encode()
                urllib.request.urlopen(METRICS_URL, data=line, timeout=10).read()
                $lines.clear()
        """,
        imports="import http.server; import json; import multiprocessing; import time; "
        "import urllib.request",
        shared=SERVER,
        state="lines = []",
        helper="post_metrics",
        sizes=(0.0003, 0.01),
        is_whole=False,
        kinds=OFTEN,
        avoid=("pools",),
    ),
    Cause(
        "subprocess",
        ("child",),
        slow="""
            revision = subprocess.run(["git", "--version"], capture_output=True, text=True).stdout
            $versions.append(revision.strip())
        """,
        imports="import subprocess",
        state="versions = []",
        helper="note_version",
    ),
    Cause(
        "fsync_append",
        ("disk",),
        slow="""
            with open("rewards.csv", "a") as table_file:
                table_file.write(f"{$reward}\\n" * $size)
                table_file.flush()
                os.fsync(table_file.fileno())
        """,
        fixed="""
            $out_file.write(f"{$reward}\\n" * $size)
        """,
        imports="import os",
        state='out_file = open("all_rewards.csv", "a")',
        helper="write_reward",
        sizes=(1, 200),
    ),
    Cause(
        "held_lock",
        ("lock",),
        slow="""
            with stats_lock:
                stats.append(float($reward))
            changed.set()
        """,
        fixed="""
            with stats_lock:
                stats.append(float($reward))
            changed.set()
        """,
        slow_globals="""
            def publish_stats():
                while changed.wait():
                    changed.clear()
                    with stats_lock:
                        sent.append(stats[-1])
                        time.sleep($size)


            threading.Thread(target=publish_stats, daemon=True).start()
        """,
        fixed_globals="""
            def publish_stats():
                while changed.wait():
                    changed.clear()
                    with stats_lock:
                        sent.append(stats[-1])
                    time.sleep($size)


            threading.Thread(target=publish_stats, daemon=True).start()
        """,
        shared="""
            stats_lock, changed = threading.Lock(), threading.Event()
            stats = []
            sent = []
        """,
        imports="import threading; import time",
        helper="add_to_stats",
        cost_us=(0.0, 1e6),
        overlaps=True,
        sizes=(0.002, 0.05),
        is_whole=False,
        kinds=OFTEN,
        avoid=("pools",),
    ),
    # --- written out too often ---
    Cause(
        "torch_save",
        ("computing", "disk"),
        slow="""
            torch.save(
                {"model": $net.state_dict(), "steps": $count, "history": $kept[:$size]},
                "checkpoint.pt",
            )
        """,
        imports="import torch",
        state="kept = torch.zeros($size)",
        helper="save_checkpoint",
        sizes=(1000, 1000000),
        kinds=("update", "episode", "step"),
    ),
    Cause(
        "pickle_history",
        ("computing", "disk"),
        slow="""
            $history.append({"at": len($history), "reward": float($reward)})
            with open("history.pkl", "wb") as history_file:
                pickle.dump($history, history_file)
        """,
        fixed="""
            $history.append({"at": len($history), "reward": float($reward)})
        """,
        imports="import pickle",
        state="history = []",
        helper="keep_history",
        grows=True,
    ),
    Cause(
        "render_frames",
        ("computing",),
        slow="""
            $camera.step($camera.action_space.sample())
            $frames.append($camera.render()[::$size])
        """,
        imports="import gymnasium as gym; import collections",
        state="""
            camera = gym.wrappers.Autoreset(gym.make("CartPole-v1", render_mode="rgb_array"))
            frames = collections.deque([$camera.reset(seed=0)], maxlen=50)
        """,
        helper="record_frame",
        sizes=(2, 4),
        kinds=("step", "update", "episode"),
    ),
    # --- environments ---
    Cause(
        "env_each_episode",
        ("computing",),
        slow="""
            probe = gym.make("CartPole-v1")
            probe.reset(seed=len($lengths))
            $lengths.append(sum(not probe.step(0)[2] for _ in range($size)))
            probe.close()
        """,
        fixed="""
            $probe_env.reset(seed=len($lengths))
            $lengths.append(sum(not $probe_env.step(0)[2] for _ in range($size)))
        """,
        imports="import gymnasium as gym",
        state="""
            lengths = []
            probe_env = gym.make("CartPole-v1")
        """,
        helper="probe_episode",
        sizes=(1, 4),
    ),
    Cause(
        "reset_builds_table",
        ("computing",),
        slow="""
            heights = []
            for x in range($size):
                heights.append(math.sin(0.1 * x) + 0.3 * math.sin(0.37 * x))
            $terrain[:] = heights
        """,
        fixed="$terrain[:] = $flat",
        imports="import math",
        state="""
            terrain = [0.0] * $size
            flat = [math.sin(0.1 * x) + 0.3 * math.sin(0.37 * x) for x in range($size)]
        """,
        helper="build_terrain",
        sizes=(50, 30000),
        kinds=("reset", "episode", "env"),
    ),
    Cause(
        "small_numpy_physics",
        ("computing",),
        slow="""
            for _ in range($size):
                angle = np.clip($bodies[0] + np.array([0.01, -0.01]), -np.pi, np.pi)
                $bodies[0] = np.where(np.abs(angle) > 3.0, -angle, angle)
                $bodies[1] = np.array([np.cos($bodies[0][0]), np.sin($bodies[0][1])])
        """,
        fixed="""
            for _ in range($size):
                angle, other = $bodies[0][0] + 0.01, $bodies[0][1] - 0.01
                angle = -angle if abs(angle) > 3.0 else angle
                other = -other if abs(other) > 3.0 else other
                $bodies[0] = (angle, other)
                $bodies[1] = (math.cos(angle), math.sin(other))
        """,
        imports="import math; import numpy as np",
        state="bodies = [np.zeros(2), np.zeros(2)]",
        helper="integrate",
        sizes=(1, 8),
        kinds=("env", "step"),
    ),
    Cause(
        "eval_too_often",
        ("computing",),
        slow="""
            $eval_env.reset(seed=len($eval_returns))
            total_return = 0.0
            for _ in range($size):
                total_return += float($eval_env.step($eval_env.action_space.sample())[1])
            $eval_returns.append(total_return)
        """,
        imports="import gymnasium as gym",
        state="""
            eval_env = gym.make("Pendulum-v1")
            eval_returns = []
        """,
        helper="evaluate_baseline",
        sizes=(20, 200),
        kinds=("update", "episode"),
    ),
    # --- data walked or copied ---
    Cause(
        "running_mean",
        ("computing",),
        slow="""
            $seen.extend([$reward] * $size)
            $means.append(sum($seen) / len($seen))
        """,
        fixed="""
            $seen.append($reward)
            $means.append($seen[-1])
        """,
        state="""
            seen = []
            means = []
        """,
        helper="running_mean",
        sizes=(1, 50),
        grows=True,
    ),
    Cause(
        "array_of_list",
        ("computing",),
        slow="""
            $trace.append($obs)
            spread = np.array($trace).std()
            $spreads.append(spread)
        """,
        fixed="""
            $trace.append($obs)
            spread = np.array($trace[-20:]).std()
            $spreads.append(spread)
        """,
        imports="import numpy as np",
        state="""
            trace = []
            spreads = []
        """,
        helper="track_spread",
        grows=True,
    ),
    Cause(
        "pop_first",
        ("computing",),
        slow="""
            $window.append($reward)
            $window.pop(0)
        """,
        fixed="""
            $window_ends.append($reward)
            $window_ends.popleft()
        """,
        imports="import collections",
        state="""
            window = [0.0] * $size
            window_ends = collections.deque($window)
        """,
        helper="slide_window",
        sizes=(20000, 500000),
    ),
    Cause(
        "deepcopy_config",
        ("computing",),
        slow="""
            settings = copy.deepcopy($defaults)
            settings["rates"][0] = 0.5
        """,
        fixed="""
            settings = {**$defaults, "rates": [0.5, *$defaults["rates"][1:]]}
        """,
        imports="import copy",
        state='defaults = {"rates": [0.1] * $size, "names": {f"k{i}": [i] for i in range($size)}}',
        helper="episode_settings",
        sizes=(3, 300),
    ),
    Cause(
        "leaderboard_sorted",
        ("computing",),
        slow="""
            $scores.append(float($reward) + 0.001 * len($scores) % 1.7)
            best_ones = sorted($scores, key=lambda score: -score)[:10]
            $tops.append(best_ones[-1])
        """,
        fixed="""
            score = float($reward) + 0.001 * len($tops) % 1.7
            (heapq.heappush if len($scores) < 10 else heapq.heappushpop)($scores, score)
            $tops.append($scores[0])
        """,
        imports="import heapq",
        state="""
            scores = []
            tops = []
        """,
        helper="update_leaderboard",
        grows=True,
    ),
    Cause(
        "pickle_roundtrip",
        ("computing",),
        slow="""
            snapshot = pickle.loads(pickle.dumps($episodes))
            snapshot.append($reward)
        """,
        fixed="snapshot = [*$episodes[-10:], $reward]",
        imports="import pickle",
        state='episodes = [{"length": i, "return": 0.5 * i} for i in range($size)]',
        helper="snapshot_episodes",
        sizes=(10, 5000),
    ),
    # --- O(N) sampling ---
    Cause(
        "choice_with_p",
        ("computing",),
        slow="""
            chosen_rows = $draws.choice($size, size=32, p=$weights / $weights.sum())
            $weights[chosen_rows] = $draws.random(32) + 0.1
        """,
        fixed="""
            tries = $draws.integers(0, $size, 96)
            chosen_rows = tries[$draws.random(96) * 1.1 < $weights[tries]][:32]
            $weights[chosen_rows] = $draws.random(len(chosen_rows)) + 0.1
        """,
        imports="import numpy as np",
        state="""
            draws = np.random.default_rng(11)
            weights = np.ones($size)
        """,
        helper="draw_rows",
        sizes=(1000, 300000),
        kinds=("update", "sample", "episode", "step"),
    ),
    Cause(
        "sorted_priorities",
        ("computing",),
        slow="""
            ranking = sorted(range($size), key=$priorities.__getitem__, reverse=True)
            rank = int(abs($generator.normal()) * $size / 8) % $size
            $priorities[ranking[rank]] = $generator.random()
        """,
        fixed="""
            rank = $generator.integers(0, $size, 8)
            $priorities[max(rank.tolist(), key=$priorities.__getitem__)] = $generator.random()
        """,
        imports="import numpy as np",
        state="""
            generator = np.random.default_rng(5)
            priorities = $generator.random($size).tolist()
        """,
        helper="rank_based_index",
        sizes=(50, 20000),
        kinds=("update", "sample", "episode"),
    ),
    # --- other threads, modes left on ---
    Cause(
        "busy_thread",
        ("interpreter", "computing"),
        slow="watcher = threading.Thread(target=watch_progress, daemon=True)\nwatcher.start()",
        slow_globals="""
            def watch_progress():
                checks = 0
                while True:
                    checks += 1
                    if checks % 200_000 == 0:
                        time.sleep($size)
        """,
        fixed_globals="""
            def watch_progress():
                checks = 0
                while True:
                    checks += 1
                    time.sleep(0.5)
        """,
        fixed="watcher = threading.Thread(target=watch_progress, daemon=True)\nwatcher.start()",
        imports="import threading; import time",
        kinds=("setup",),
        forms=("inline",),
        avoid=("pools", "jax"),
        words=("interpreter lock", "interpreter's lock", "watch_progress"),
        sizes=(0.005, 0.02),
        is_whole=False,
        expected=1.8,
    ),
    Cause(
        "anomaly_mode",
        ("computing",),
        slow="torch.autograd.set_detect_anomaly(True)",
        imports="import torch",
        kinds=("setup",),
        styles=("cleanrl", "sb3", "class", "generator", "asyncio"),
        forms=("inline",),
        words=("anomaly",),
        expected=1.5,
    ),
    Cause(
        "profile_hook",
        ("computing",),
        slow="sys.setprofile(count_calls)",
        slow_globals="""
            call_counts = collections.Counter()


            def count_calls(frame, event, arg):
                call_counts[frame.f_code.co_name] += 1
        """,
        imports="import collections; import sys",
        kinds=("setup",),
        forms=("inline",),
        words=("setprofile", "profile function", "count_calls"),
        expected=1.8,
    ),
    Cause(
        "many_torch_threads",
        ("computing",),
        slow="torch.set_num_threads($size)",
        imports="import torch",
        kinds=("setup",),
        styles=("cleanrl", "class", "generator"),
        forms=("inline",),
        sizes=(8, 32),
        words=("threads",),
        expected=1.3,
    ),
    Cause(
        "collect_garbage",
        ("computing",),
        slow="gc.collect()",
        imports="import gc; import torch",
        cost_us=(55_000.0, 0.0),
        helper="free_memory",
        avoid=("pools",),
    ),
    # --- tensors and networks ---
    Cause(
        "tensor_of_arrays",
        ("computing",),
        slow="""
            $rows.append(np.asarray($obs, dtype=np.float32))
            stacked = torch.tensor([row for row in $rows])
            $norms.append(float(stacked.abs().max()))
        """,
        fixed="""
            $rows.append(np.asarray($obs, dtype=np.float32))
            stacked = torch.from_numpy(np.stack($rows))
            $norms.append(float(stacked.abs().max()))
        """,
        imports="import collections; import warnings; import numpy as np; import torch",
        state="""
            rows = collections.deque(maxlen=$size)
            norms = []
        """,
        helper="recent_norm",
        sizes=(4, 200),
    ),
    Cause(
        "gae_by_element",
        ("computing",),
        slow="""
            estimates = torch.zeros($size)
            last_one = torch.zeros(())
            for i in reversed(range($size)):
                last_one = $deltas[i] + 0.95 * 0.99 * last_one
                estimates[i] = last_one
        """,
        fixed="""
            last_one, summed = 0.0, []
            for delta_i in reversed($deltas.tolist()):
                last_one = delta_i + 0.95 * 0.99 * last_one
                summed.append(last_one)
            estimates = torch.tensor(summed[::-1])
        """,
        imports="import torch",
        state="deltas = torch.linspace(-1.0, 1.0, $size)",
        helper="discounted",
        sizes=(8, 2000),
        kinds=("update", "episode"),
    ),
    Cause(
        "mode_flips",
        ("computing",),
        slow="""
            for _ in range($size):
                $net.eval()
                $net.train()
        """,
        imports="import torch",
        helper="toggle_modes",
        sizes=(1, 60),
        kinds=("update", "episode", "step"),
    ),
    Cause(
        "target_copy",
        ("computing",),
        slow="""
            if not $targets:
                $targets.append(copy.deepcopy($net))
            for _ in range($size):
                $targets[0].load_state_dict($net.state_dict())
        """,
        fixed="""
            if not $targets:
                $targets.append(copy.deepcopy($net))
        """,
        imports="import copy; import torch",
        state="targets = []",
        helper="refresh_target",
        sizes=(1, 8),
        kinds=("update", "episode", "step"),
    ),
    Cause(
        "one_state_at_a_time",
        ("computing",),
        slow="""
            with torch.no_grad():
                outputs = [float(torch.tanh(row @ $readout)) for row in $probes]
            $drift.append(max(outputs))
        """,
        fixed="""
            with torch.no_grad():
                outputs = torch.tanh($probes @ $readout)
            $drift.append(float(outputs.max()))
        """,
        imports="import torch",
        state="""
            probes = torch.linspace(-1.0, 1.0, 16 * $size).reshape($size, 16)
            readout = torch.linspace(0.0, 1.0, 16)
            drift = []
        """,
        helper="probe_states",
        sizes=(4, 500),
        kinds=("update", "episode", "step"),
    ),
    Cause(
        "device_scalars",
        ("computing",),
        slow="""
            bands = jnp.linspace(0.0, 1.0, $size)
            $sums.append(sum(float(band) for band in bands))
        """,
        fixed="""
            bands = np.linspace(0.0, 1.0, $size)
            $sums.append(float(bands.sum()))
        """,
        imports="import jax.numpy as jnp; import numpy as np",
        state="sums = []",
        helper="sum_bands",
        sizes=(2, 100),
        styles=("jax",),
    ),
    # --- text, logs, settings ---
    Cause(
        "eager_logging",
        ("computing",),
        slow="""
            text = np.array2string($table_of_weights, precision=4, threshold=sys.maxsize)
            logger.debug("reward %s, weights %s", $reward, text)
        """,
        fixed='logger.debug("reward %s, %d weights", $reward, $table_of_weights.size)',
        imports="import logging; import sys; import numpy as np",
        shared="logger = logging.getLogger(__name__)",
        state="table_of_weights = np.linspace(0.0, 1.0, $size)",
        helper="log_weights",
        sizes=(4, 500),
    ),
    Cause(
        "omegaconf_reads",
        ("computing",),
        slow="""
            budget = 0.0
            for _ in range($size):
                budget += cfg.agent.optim.scale * cfg.agent.optim.rate
        """,
        fixed="""
            budget = 0.0
            for _ in range($size):
                budget += SCALE * RATE
        """,
        imports="from omegaconf import OmegaConf",
        shared="""
            cfg = OmegaConf.create({"agent": {"optim": {"scale": 0.5, "rate": 0.1}}})
            SCALE, RATE = cfg.agent.optim.scale, cfg.agent.optim.rate
        """,
        helper="reward_budget",
        sizes=(1, 40),
    ),
    Cause(
        "zlib_observations",
        ("computing",),
        slow="""
            packed = zlib.compress(np.tile(np.asarray($obs), $size).tobytes(), 9)
            $packs.append(packed)
        """,
        fixed="""
            packed = np.asarray($obs).tobytes()
            $packs.append(packed)
        """,
        imports="import collections; import zlib; import numpy as np",
        state="packs = collections.deque(maxlen=100)",
        helper="store_compressed",
        sizes=(4, 2000),
    ),
    Cause(
        "regex_and_time",
        ("computing",),
        slow="""
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            tags = [re.sub(r"[^a-z0-9]+", "-", f"{stamp} Run {i}".lower()) for i in range($size)]
        """,
        fixed="tags = $run_tags",
        imports="import re; import time",
        state='run_tags = [f"run-{i}" for i in range($size)]',
        helper="run_names",
        sizes=(1, 100),
    ),
    Cause(
        "eval_expressions",
        ("computing",),
        slow="""
            bonus = 0.0
            for formula in $formulas:
                bonus += eval(formula, {"r": float($reward), "abs": abs})
        """,
        fixed="""
            bonus = 0.0
            for k in range(len($formulas)):
                bonus += 0.1 * k * abs(float($reward)) + 1.0 / (k + 1)
        """,
        state='formulas = [f"0.1 * {k} * abs(r) + 1.0 / ({k} + 1)" for k in range($size)]',
        helper="shaping_bonus",
        sizes=(1, 50),
    ),
    Cause(
        "glob_checkpoints",
        ("disk", "computing"),
        slow="""
            files = sorted(glob.glob(os.path.join(RUN_DIR, "*.npz")), key=os.path.getmtime)
            $latest.append(files[-1])
        """,
        fixed="$latest.append(NEWEST)",
        imports="import collections; import glob; import os; import tempfile",
        shared="""
            RUN_DIR = tempfile.mkdtemp()
            for at in range($size):
                NEWEST = os.path.join(RUN_DIR, f"step_{at}.npz")
                open(NEWEST, "wb").close()
        """,
        state="latest = collections.deque(maxlen=10)",
        helper="latest_checkpoint",
        sizes=(5, 300),
    ),
    Cause(
        "eigenvalues",
        ("computing",),
        slow="$radii.append(float(np.abs(np.linalg.eigvals($mixing)).max()))",
        imports="import numpy as np",
        state="""
            mixing = np.cos(np.arange($size * $size)).reshape($size, $size)
            radii = []
        """,
        helper="spectral_radius",
        sizes=(4, 60),
    ),
    # --- workers ---
    Cause(
        "large_pickles_to_workers",
        ("pipe", "lock", "child", "computing"),
        slow="""
            job = helpers.submit(mean_of_rows, $archive, $size // 2)
            $archive_means.append(job.result())
        """,
        fixed="""
            job = helpers.submit(mean_of_rows, $archive[:1], 0)
            $archive_means.append(job.result())
        """,
        imports="import numpy as np; from concurrent.futures import ProcessPoolExecutor",
        shared="""
            helpers = ProcessPoolExecutor(1)


            def mean_of_rows(rows, at):
                return float(rows[at].mean())
        """,
        state="""
            archive = np.ones(($size, 16))
            archive_means = []
        """,
        helper="archive_statistics",
        sizes=(100, 40000),
        kinds=("update", "episode", "step"),
        avoid=("pools", "jax", "asyncio"),
    ),
]
