"""`p2ptrain run stop`: end a run for all its members before its last outer step."""

from __future__ import annotations

from typing import Annotated

import typer

from p2ptrain.cli.homes import HomeOption, check_asked_for, open_home, organiser_of, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result_or_json
from p2ptrain.cli.rendering import printable
from p2ptrain.suggested_command import to_paste

EXAMPLES = examples(
    'p2ptrain run stop tiny --reason "the loss no longer falls"',
    'p2ptrain run stop tiny --reason "a new run begins" --from-step 500 --home ORGANISER',
)


def stop(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's name, or the beginning of its id.")
    ],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="One line that every node shows.")
    ],
    from_step: Annotated[
        int | None,
        typer.Option(
            "--from-step",
            metavar="N",
            help="First outer step that is not trained any more.",
            show_default="as soon as the members can agree on it",
        ),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a run before its last outer step.

    Only an organiser can do this, and it cannot be withdrawn. The end is an amendment: it takes
    effect once the members have agreed on it and the run has reached the step. Then every node
    stops training, shows the reason and a summary, and serves the weights. If several organisers
    must sign, the output is a proposal.
    """
    from p2ptrain.cli.commands.admission.proposals import passed_on
    from p2ptrain.cli.commands.run_amend import amend, course_of, next_step, wanted_amendment
    from p2ptrain.run import load_amendments

    where = open_home(home)
    held = run_of(where)
    check_asked_for(run, held)
    organiser = organiser_of(where, held)
    if from_step is None:
        signed = load_amendments(where.amendments, held)
        from_step = next_step(held, course_of(where, held), signed)
    wanted = wanted_amendment(held, from_step, {"stop": reason})
    made = amend(where, held, organiser, wanted, far=True)
    facts = made.amendment.facts | {"digest": made.digest}
    if passed_on(where, held, made, as_json=as_json, more=facts):
        return
    words = f"amendment {made.amendment.number}: {printable(made.amendment.words)}"
    result_or_json(words, facts, as_json=as_json)
    progress(
        f"the run ends before outer step {made.amendment.step} if the members have agreed on that "
        f"by then; to check, run: {to_paste(where.root, 'status')}"
    )
