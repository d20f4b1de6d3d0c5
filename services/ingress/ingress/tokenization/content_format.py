"""Tells by its source whether a chat template takes a message's content as a string or as a list of parts.

Engines decide this by looking for a loop over a message's content (vLLM's `auto` content format), and what they
decide changes the prompt of a message whose content is a list.
"""

from collections.abc import Iterator

from jinja2 import nodes

from ingress.tokenization.chat import ContentFormat


def content_format(template: nodes.Template) -> ContentFormat:
    """`openai` if the template loops over the parts of a message's content, else `string`."""
    messages = _messages(template)
    in_macros: set[int] = set()
    for macro in template.find_all(nodes.Macro):
        loops = list(macro.find_all(nodes.For))
        in_macros.update(id(loop) for loop in loops)
        taken = _parameters_given_content(template, macro, messages)
        if any(isinstance(loop.iter, nodes.Name) and loop.iter.name in taken for loop in loops):
            return "openai"
    for loop in template.find_all(nodes.For):
        if _is_content(loop.iter, messages):
            return "openai"
        if id(loop) not in in_macros and isinstance(loop.iter, nodes.Name) and loop.iter.name == "content":
            return "openai"
    return "string"


def _messages(template: nodes.Template) -> set[str]:
    """The names that stand for one message: targets of loops over `messages` or what was assigned from it."""
    lists = {"messages"}
    assignments = list(template.find_all(nodes.Assign))
    while new := set(_assigned_from(assignments, lists)) - lists:
        lists |= new
    return {
        loop.target.name
        for loop in template.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and _is_name(loop.iter, lists)
    }


def _assigned_from(assignments: list[nodes.Assign], names: set[str]) -> Iterator[str]:
    for assignment in assignments:
        if isinstance(assignment.target, nodes.Name) and _is_name(assignment.node, names):
            yield assignment.target.name


def _parameters_given_content(template: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    names = [parameter.name for parameter in macro.args]
    taken: set[str] = set()
    for call in template.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            given = [*zip(names, call.args, strict=False), *((word.key, word.value) for word in call.kwargs)]
            taken.update(name for name, value in given if name in names and _is_content(value, messages))
    return taken


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """Without the filters, tests and slices around it."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _bare(node.node)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _bare(node.node)
    return node


def _is_name(node: nodes.Node | None, names: set[str]) -> bool:
    node = _bare(node)
    return isinstance(node, nodes.Name) and node.name in names


def _is_content(node: nodes.Node, messages: set[str]) -> bool:
    bare = _bare(node)
    if isinstance(bare, nodes.Getattr):
        return bare.attr == "content" and _is_name(bare.node, messages)
    if isinstance(bare, nodes.Getitem):
        return (
            isinstance(bare.arg, nodes.Const)
            and bare.arg.value == "content"
            and _is_name(bare.node, messages)
        )
    return False
