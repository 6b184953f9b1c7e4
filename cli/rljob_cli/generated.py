"""`rljob crd` and `rljob docs`: files that are made from the models. They print and do nothing else."""

import click


@click.command()
def crd() -> None:
    """Print the CustomResourceDefinition of RLJob.

    Apply it with: rljob crd | kubectl apply --server-side -f -
    """
    from rljob_api.generate.crd import crd_text

    click.echo(crd_text(), nl=False)


@click.command()
def docs() -> None:
    """Print the reference of the spec as Markdown: every field, its type, default and meaning."""
    from rljob_api.generate.reference import reference

    click.echo(reference(), nl=False)
