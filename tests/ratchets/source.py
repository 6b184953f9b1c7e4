"""Takes a Python file apart: lines of code, functions, classes, docstrings, comments, messages.

Pure. A line of code has a token that is neither comment nor layout, and belongs to no docstring. Each string that
stands alone is a docstring, also one under a field. A message is any other text of `MESSAGE_LENGTH` words or more.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

MESSAGE_LENGTH = 4
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring, comment or message, and the line on which it begins."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method; its lines of code have those of its inner functions."""

    name: str
    line: int
    code_lines: int


@dataclass(frozen=True, slots=True)
class Source:
    """One file."""

    code_lines: int
    functions: tuple[Function, ...]
    classes: tuple[str, ...]
    docstrings: tuple[Text, ...]
    comments: tuple[Text, ...]
    messages: tuple[Text, ...]


def read(code: str) -> Source:
    """Parses the text of a file."""
    tree = ast.parse(code)
    nodes = list(ast.walk(tree))
    alone = {id(node.value): node for node in nodes if isinstance(node, ast.Expr) and _is_text(node.value)}
    comments: dict[int, str] = {}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("#").strip()
        elif token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for docstring in alone.values():
        lines.difference_update(_lines_of(docstring))
    functions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return Source(
        code_lines=len(lines),
        functions=tuple(
            Function(node.name, node.lineno, sum(line in lines for line in _lines_of(node))) for node in functions
        ),
        classes=tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)),
        docstrings=tuple(Text(node.lineno, _text_of(node.value)) for node in alone.values()),
        comments=tuple(_blocks(comments, lines)),
        messages=tuple(_messages(tree, set(alone))),
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _text_of(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _blocks(comments: dict[int, str], code: set[int]) -> Iterator[Text]:
    """Comments; lines of comment that follow each other, with no code on them, are one."""
    for line, text in comments.items():
        if line - 1 in comments and not {line, line - 1} & code:
            continue
        following = [text]
        while line not in code and line + len(following) in comments and line + len(following) not in code:
            following.append(comments[line + len(following)])
        yield Text(line, " ".join(following))


def _messages(node: ast.AST, docstrings: set[int]) -> Iterator[Text]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            text = "".join(_text_of(part) or "{}" for part in child.values)
        elif isinstance(child, ast.expr) and _is_text(child) and id(child) not in docstrings:
            text = _text_of(child)
        else:
            yield from _messages(child, docstrings)
            continue
        if len(text.split()) >= MESSAGE_LENGTH:
            yield Text(getattr(child, "lineno", 0), text)
