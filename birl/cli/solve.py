"""`birl solve ENV`: an agent for an environment, with nothing else to decide."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from birl.cli.modules import allow_modules_here
from birl.cli.options import ResumeOptions
from birl.cli.parsing import parse
from birl.cli.tune import require_for_search
from birl.config import EnvConfig, Plain, Wrapper, require
from birl.run.signals import starting


def solve(words: list[str]) -> int:
    def arguments(
        env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")],
        /,
        minutes: float | None = None,
        trials: int | None = None,
        total_steps: int | None = None,
        algorithms: tuple[str, ...] = (),
        episodes: int = 100,
        seed: int = 1,
        jobs: int | None = None,
        run_dir: Path | None = None,
        video: bool = True,
        backend: Literal["gymnasium", "envpool", "compiled"] = "gymnasium",
        max_episode_steps: int | None = None,
        hide_velocities: bool = False,
        ignore_observations: tuple[str, ...] = (),
        wrapper: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
        kwargs: dict[str, Plain] = {},  # noqa: B006
    ) -> tuple[EnvConfig, dict[str, Any]]:
        """Find an agent for an environment: try the algorithms that fit, for a given time.

        Ends with a policy, its score on fresh episodes beside that of random actions, and a video.

        Args:
            env_id: a Gymnasium id, my_module:MyEnv-v0 or my_module:my_function
            minutes: time for everything; 10 if --trials is not given
            trials: end the search after this many trials
            total_steps: environment steps of each trial; None: as many as the time allows
            algorithms: try only these; none: those that fit the action space
            episodes: fresh episodes for the final score
            seed: of everything
            jobs: trials at once, a process each; None: the CPU cores
            run_dir: where to write; None: runs/solve-ENV. A stopped search there goes on
            video: record an episode
            backend: what steps the environment; compiled: JAX
            max_episode_steps: truncate episodes after this many steps
            hide_velocities: remove velocities from the observation
            ignore_observations: parts of a Dict observation to leave out
            wrapper: wrap the environment, my_module:MyWrapper; may be repeated
            kwargs: keyword arguments for the environment: names and values
        """
        env = EnvConfig(
            env_id,
            backend=backend,
            max_episode_steps=max_episode_steps,
            hide_velocities=hide_velocities,
            ignore_observations=ignore_observations,
            wrappers=tuple(map(Wrapper.from_text, wrapper)),
            kwargs=kwargs,
        )
        settings = {
            "minutes": minutes,
            "trials": trials,
            "total_steps": total_steps,
            "algorithms": algorithms,
            "episodes": episodes,
            "seed": seed,
            "jobs": jobs,
            "run_dir": None if run_dir is None else str(run_dir),
            "video": video,
        }
        return env, settings

    env, settings = parse(arguments, words, "birl solve")
    with starting():
        from birl.lab.solving import solve as run_solve

    allow_modules_here(env.id, *(wrapper.path for wrapper in env.wrappers))
    return 0 if run_solve(env, **settings)["better"] else 1


def resume_solving(options: ResumeOptions) -> int:
    """Go on with a search for an agent that was stopped."""
    require_for_search(options)
    wrong = f"--ray-address {options.ray_address}: a search for an agent trains on this machine"
    require(options.ray_address is None, f"{wrong}; leave it out")
    with starting():
        from birl.lab.solving import continue_solving

    return 0 if continue_solving(options.run_dir, options.jobs, options.trust)["better"] else 1
