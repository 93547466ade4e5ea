"""Gives every flag of `experiments.main` one hostile value after the other, in one process.

Prints each value that ends neither in a config nor in an error of ours. Run by `test_flag_values`.
"""

import sys

from absl import flags

from experiments import main
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy.accounting import Schedule, noise_multiplier

VALUES = (
    *("", " ", "-1", "0", "1", "2", "0.5", "1.5", "nan", "inf", "-inf", "1e-300", "1e300"),
    *(
        "99999999999999999999",
        "0x10",
        "true",
        "none",
        "a,b",
        ",",
        "3,,3",
        "../..",
        "\0",
        "ünï",
        "%s",
    ),
)


def tried(flag: str, value: str) -> str:
    """What the value leads to: a plan, an error of ours, or the name of another exception."""
    flags.FLAGS.unparse_flags()
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    try:
        flags.FLAGS(["main", "--dataset=digits", f"--{flag}={value}"])
        config = main.run_config(flags.FLAGS.dataset)
        schedule = Schedule(
            records=8000,
            rounds=config.rounds,
            batch_size=config.batch_size,
            first_batch_size=config.first_batch_size or 8000,
            local_epochs=config.local_epochs,
            selections=config.selections,
            epsilon_select=config.epsilon_select,
        )
        noise_multiplier(schedule, config.epsilon, config.delta)
    except (flags.Error, UserError):
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "planned"


if __name__ == "__main__":
    own_flags = [flag.name for flag in flags.FLAGS.flags_by_module_dict()[main.__name__]]
    outcomes = {(flag, value): tried(flag, value) for flag in own_flags for value in VALUES}
    for (flag, value), outcome in outcomes.items():
        if outcome not in ("refused", "planned"):
            print(f"--{flag}={value!r}: {outcome}")
    print(f"{len(own_flags)} flags, {len(outcomes)} values", file=sys.stderr)
