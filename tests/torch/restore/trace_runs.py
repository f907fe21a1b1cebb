"""Each script three times, as `stage=restore restore.script=...` starts it: whole, killed, resumed.

    python trace_runs.py FOLDER

torch and the trainers are imported once, and every start is a fork of that: the kill is a real one, and nothing but the
checkpoint comes through. Leaves `FOLDER/<name>/<phase>/trace-0.jsonl`, and `errors.txt` where a start went wrong.
"""

import os
import runpy
import signal
import socket
import sys
import traceback
import warnings
from pathlib import Path

import accelerate
import lightning.pytorch
import torch
import transformers

SCRIPTS = Path(__file__).with_name("scripts")
NUM_STEPS = 2
STARTS = {
    "own loop": ("own_loop.py", []),
    "own loop without its optimizer": ("own_loop.py", ["--forget", "optimizer"]),
    "own loop without its scheduler": ("own_loop.py", ["--forget", "scheduler"]),
    "own loop without its generator": ("own_loop.py", ["--forget", "torch"]),
    "own loop that starts over": ("own_loop.py", ["--forget", "everything"]),
    "transformers": ("hf_trainer.py", []),
    "lightning": ("lightning_trainer.py", []),
    "lightning mid-epoch": ("lightning_trainer.py", ["--middle", "--loader=stateful", "--generators"]),
    "lightning mid-epoch without generators": ("lightning_trainer.py", ["--middle", "--loader=stateful"]),
    "lightning mid-epoch without a loader's state": ("lightning_trainer.py", ["--middle", "--generators"]),
    "accelerate": ("accelerate_loop.py", []),
    "accelerate resumed as documented": ("accelerate_loop.py", ["--resume=plain"]),
    "accelerate shuffled by torch's generator": ("accelerate_loop.py", ["--sampler=random"]),
    "accelerate without skipping": ("accelerate_loop.py", ["--forget=position"]),
    "accelerate without its random states": ("accelerate_loop.py", ["--forget=random"]),
}


def main() -> None:
    assert accelerate.Accelerator
    assert transformers.Trainer
    assert lightning.pytorch.Trainer
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for name, (script, arguments) in STARTS.items():
        for phase, kill_after in (("uninterrupted", None), ("killed", NUM_STEPS + 1), ("resumed", None)):
            kept = folder / name / ("a" if phase == "uninterrupted" else "b")
            pid = os.fork()
            if pid == 0:
                run(folder / name / phase, kept, SCRIPTS / script, arguments, kill_after)
            _, status = os.waitpid(pid, 0)
            expected = 0 if kill_after is None else -signal.SIGKILL
            assert os.waitstatus_to_exitcode(status) == expected, (name, phase, status)


def run(trace: Path, kept: Path, script: Path, arguments: list[str], kill_after: int | None) -> None:
    try:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ |= {
            "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "PILOTKIT_TRACE_DIR": str(trace), "PILOTKIT_CHECKPOINT_DIR": str(kept),
            "PILOTKIT_NUM_STEPS": str(2 * NUM_STEPS), "PILOTKIT_SAVE_EVERY_STEPS": str(NUM_STEPS),
        }  # fmt: skip
        if script.name != "own_loop.py":
            for variable in ("RANK", "WORLD_SIZE"):  # these trainers would join a group of processes
                del os.environ[variable]
        if kill_after is not None:
            os.environ["PILOTKIT_KILL_AFTER_STEP"] = str(kill_after)
        sys.argv = [str(script), *arguments]
        warnings.simplefilter("ignore")
        runpy.run_path(str(script), run_name="__main__")
    except BaseException:
        with open(trace.parent / "errors.txt", "a", encoding="utf-8") as stream:
            traceback.print_exc(file=stream)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
