"""The fork server: reads the language of a model, then forks the workers that prepare requests.

It is given one end of a socket pair. The agent sends what to read; this answers with the facts of
the language, or why it cannot be read. From then on every byte on the socket comes with a
descriptor: the connection of a worker, which is forked on the spot. When the socket closes the
agent is gone, or wants us gone: this process ends, and its workers with it.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
from functools import partial

from paddler_trio.language.answers.format_detection import format_of
from paddler_trio.language.language_source import LanguageSource
from paddler_trio.language.model_language import (
    Language,
    LanguageError,
    read_language,
)
from paddler_trio.language.rendering import paddler_form_of
from paddler_trio.language.vocabulary import print_llama_log
from paddler_trio.processes.preparation.job_limits import memory_limited
from paddler_trio.processes.preparation.preparation_messages import (
    LanguageFacts,
    LanguageRefused,
    frame_of,
    receive_frame,
)
from paddler_trio.processes.preparation.worker import Worker
from paddler_trio.system.heap import freeze_heap
from paddler_trio.system.kernel.process_descriptors import die_with_parent
from paddler_trio.system.thread_priority import run_loading

NICENESS = 3
"""Workers run at a lower priority than the event loops and the engine."""


def run_fork_server(control_fd: int, *, gives_way: bool) -> None:
    """Read the language, then fork workers until the agent closes the socket.

    Args:
      gives_way: read it at a low priority.
    """
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps workers
    print_llama_log()
    body = receive_frame(control)
    if body is None:
        return
    source: LanguageSource = pickle.loads(body)  # noqa: S301  # from our parent
    try:
        with memory_limited():
            language = run_loading(partial(read_language, source), gives_way=gives_way)
            shared = _shared_objects(language)
    except LanguageError as error:
        control.sendall(frame_of(LanguageRefused(error.issue, str(error))))
        return
    facts = LanguageFacts(
        language.parameters, language.vocabulary.metadata, language.fingerprint, shared
    )
    control.sendall(frame_of(facts))
    freeze_heap()
    os.nice(NICENESS)
    _serve(control, language, shared)


def _serve(control: socket.socket, language: Language, shared: tuple[object, ...]) -> None:
    parent = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if not descriptors:
            continue  # none was left here for it; who asked sees its end closed
        connection = socket.socket(fileno=descriptors[0])
        try:
            pid = os.fork()
        except OSError as error:  # the worker that was asked for is lost, the others go on
            connection.close()
            sys.stderr.write(f"no preparation process: {error.strerror}\n")
            continue
        if pid == 0:
            control.close()
            die_with_parent(parent)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            Worker(connection, language, shared).run()
            os._exit(0)
        connection.close()


def _shared_objects(language: Language) -> tuple[object, ...]:
    """Return what results refer to and never change: the rules and the call syntax of each
    template."""
    shared: list[object] = []
    templates = language.templates
    for model in (templates.default, *templates.named.values()):
        form = format_of(model.template, language.markers)
        for each in (form, paddler_form_of(form)):
            shared.append(each.rules)
            if each.calls is not None:
                shared.append(each.calls.syntax)
    return tuple(shared)
