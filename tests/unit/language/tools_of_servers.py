# ruff: noqa: E501  # a table of a hundred rows
"""A hundred schemas of arguments, as kits for tools emit them: which keywords they use, how they
nest, and what each kit adds. Names follow what the tools do; texts are our own.
"""

from __future__ import annotations

from collections.abc import Mapping

Schema = dict[str, object]

S: Schema = {"type": "string"}
N: Schema = {"type": "number"}
I: Schema = {"type": "integer"}  # noqa: E741  # as short as its siblings
B: Schema = {"type": "boolean"}
URI: Schema = {**S, "format": "uri"}
WHEN: Schema = {**S, "format": "date-time"}
SAFE: Schema = {**I, "minimum": -(2**53) + 1, "maximum": 2**53 - 1}
"""What the newest Zod makes of an integer."""
POSITIVE: Schema = {**I, "exclusiveMinimum": 0}
EMAIL: Schema = {
    **S,
    "format": "email",
    "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
}  # fmt: skip
"""What the newest Zod makes of an address: no grammar looks around."""
UUID: Schema = {**S, "format": "uuid", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"}  # fmt: skip


def of(schema: Mapping[str, object], **more: object) -> Schema:
    return {**schema, **more}


def one_of(*values: object) -> Schema:
    return {"type": "string", "enum": list(values)}


def many(items: object, **more: object) -> Schema:
    return {"type": "array", "items": items, **more}


def maybe(schema: object) -> Schema:
    """As Pydantic writes an argument that may be left out."""
    return {"anyOf": [schema, {"type": "null"}], "default": None}


def either(*schemas: object) -> Schema:
    return {"anyOf": list(schemas)}


def ref(name: str, under: str = "$defs") -> Schema:
    return {"$ref": f"#/{under}/{name}"}


def _object(properties: Mapping[str, object]) -> Schema:
    """Names that end with ``_`` need not be there."""
    return {
        "type": "object",
        "properties": {name.rstrip("_"): each for name, each in properties.items()},
        "required": [name for name in properties if not name.endswith("_")],
    }


def closed(**properties: object) -> Schema:
    return {**_object(properties), "additionalProperties": False}


def opened(**properties: object) -> Schema:
    return _object(properties)


def zod3(**properties: object) -> Schema:
    return {**closed(**properties), "$schema": "http://json-schema.org/draft-07/schema#"}


def zod4(**properties: object) -> Schema:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **closed(**properties)}


def pydantic(defs: Mapping[str, object] | None = None, **properties: object) -> Schema:
    made = _object(properties)
    given = made["properties"]
    assert isinstance(given, dict)
    titled = {name: {**each, "title": name.title()} for name, each in given.items()}
    return {**({"$defs": dict(defs)} if defs else {}), **made, "properties": titled, "title": "A"}


def older(definitions: Mapping[str, object] | None = None, **properties: object) -> Schema:
    """Pydantic 1: references stand in ``allOf``, so that something may stand beside them."""
    made = opened(**properties)
    return {"title": "Args", **made, **({"definitions": dict(definitions)} if definitions else {})}


def agents(**properties: object) -> Schema:
    """As kits write what has to be strict: everything is required, and may be null instead."""
    made = closed(**properties)
    given = made["properties"]
    assert isinstance(given, dict)
    optional = [name.rstrip("_") for name in properties if name.endswith("_")]
    nullable = {name: either(given[name], {"type": "null"}) for name in optional}
    return {**made, "properties": {**given, **nullable}, "required": list(given)}


EDIT = closed(oldText=S, newText=S)
PAGING: Schema = {"page_": of(N, minimum=1), "perPage_": of(N, minimum=1, maximum=100)}
REPO: Schema = {"owner": S, "repo": S}
STATE = one_of("open", "closed", "all")
ORDER = one_of("asc", "desc")
TARGET: Schema = {"element": S, "ref": S}
RICH_TEXT = opened(type_=one_of("text", "mention"), text=opened(content=of(S, maxLength=2000), link_=either(opened(url=URI), {"type": "null"})))  # fmt: skip
PARENT: Schema = {
    "oneOf": [
        opened(type={"const": "page_id"}, page_id=UUID),
        opened(type={"const": "database_id"}, database_id=UUID),
        opened(type={"const": "workspace"}, workspace={"const": True}),
    ]
}
FILTER: Schema = {
    "anyOf": [
        closed(op={"const": "eq"}, field=S, value=either(S, N, B, {"type": "null"})),
        closed(op={"const": "in"}, field=S, values=many(either(S, N), minItems=1)),
        closed(op={"enum": ["and", "or"]}, clauses=many(ref("Filter"), minItems=1)),
        closed(op={"const": "not"}, clause=ref("Filter")),
    ]
}
LABEL: Schema = of(S, pattern="^[a-zA-Z0-9_.-]{1,50}$")
SHA: Schema = of(S, pattern="^[0-9a-f]{7,40}$")
POINT = pydantic(lat=of(N, minimum=-90, maximum=90), lon=of(N, minimum=-180, maximum=180))
MONEY: Schema = {"anyOf": [N, of(S, pattern=r"^[+-]?\d{0,12}(\.\d{1,4})?$")]}
CLICK = one_of("left", "right", "middle")
TASK = closed(content=of(S, minLength=1), status=one_of("pending", "in_progress", "completed"), activeForm=of(S, minLength=1))  # fmt: skip
ANY_MAP: Schema = {"type": "object", "additionalProperties": {}}
TEXT_MAP: Schema = {"type": "object", "additionalProperties": S}
RECORD4: Schema = {"type": "object", "propertyNames": S, "additionalProperties": {}}
BLOCK: Schema = {
    "type": "object",
    "properties": {
        "kind": one_of("paragraph", "heading", "list"),
        "text": S,
        "children": many(ref("Block")),
    },
    "required": ["kind"],
}

TOOLS: dict[str, Schema] = {
    # files
    "fs__read_text_file": zod3(path=S, tail_=N, head_=N),
    "fs__read_media_file": zod3(path=S),
    "fs__read_multiple_files": zod3(paths=many(S, minItems=1)),
    "fs__write_file": zod3(path=S, content=S),
    "fs__edit_file": zod3(path=S, edits=many(EDIT), dryRun_=of(B, default=False)),
    "fs__list_directory_with_sizes": zod3(path=S, sortBy_=of(one_of("name", "size"), default="name")),
    "fs__directory_tree": zod4(path=S, excludePatterns_=of(many(S), default=[])),
    "fs__move_file": zod4(source=S, destination=S),
    "fs__search_files": zod4(path=S, pattern=S, excludePatterns_=of(many(S), default=[])),
    "fs__list_allowed_directories": {"type": "object", "properties": {}, "required": []},
    # git
    "git__status": pydantic(repo_path=S),
    "git__diff": pydantic(repo_path=S, target=S, context_lines_=of(I, default=3)),
    "git__commit": pydantic(repo_path=S, message=S),
    "git__add": pydantic(repo_path=S, files=many(S)),
    "git__log": pydantic(repo_path=S, max_count_=of(I, default=10), start_timestamp_=maybe(S), end_timestamp_=maybe(S)),
    "git__create_branch": pydantic(repo_path=S, branch_name=S, base_branch_=maybe(S)),
    "git__show": pydantic(repo_path=S, revision=SHA),
    "git__branch": pydantic(repo_path=S, branch_type=S, contains_=maybe(S), not_contains_=maybe(S)),
    # a forge
    "hub__get_file_contents": opened(**REPO, path_=of(S, default="/"), ref_=S, sha_=S),
    "hub__create_or_update_file": opened(**REPO, path=S, content=S, message=S, branch=S, sha_=S),
    "hub__push_files": opened(**REPO, branch=S, files=many(opened(path=S, content=S)), message=S),
    "hub__list_issues": opened(**REPO, state_=one_of("OPEN", "CLOSED"), labels_=many(S), orderBy_=one_of("CREATED_AT", "UPDATED_AT", "COMMENTS"), direction_=one_of("ASC", "DESC"), since_=S, after_=S, **PAGING),
    "hub__issue_write": opened(method=one_of("create", "update"), **REPO, issue_number_=N, title_=S, body_=S, assignees_=many(S), labels_=many(S), milestone_=N, state_reason_=one_of("completed", "not_planned", "duplicate"), duplicate_of_=N),
    "hub__search_code": opened(query=S, sort_=S, order_=ORDER, **PAGING),
    "hub__search_issues": opened(query=S, owner_=S, repo_=S, sort_=one_of("comments", "reactions", "reactions-+1", "interactions", "created", "updated"), order_=ORDER, **PAGING),
    "hub__create_pull_request": opened(**REPO, title=S, body_=S, head=S, base=S, draft_=B, maintainer_can_modify_=B),
    "hub__pull_request_read": opened(method=one_of("get", "get_diff", "get_status", "get_files", "get_review_comments"), **REPO, pullNumber=N, **PAGING),
    "hub__merge_pull_request": opened(**REPO, pullNumber=N, commit_title_=S, merge_method_=one_of("merge", "squash", "rebase")),
    "hub__review_write": opened(method=one_of("create", "submit_pending", "delete_pending"), **REPO, pullNumber=N, body_=S, event_=one_of("APPROVE", "REQUEST_CHANGES", "COMMENT"), commitID_=S),
    "hub__review_comment": opened(**REPO, pullNumber=N, path=S, body=S, subjectType=one_of("FILE", "LINE"), line_=N, side_=one_of("LEFT", "RIGHT"), startLine_=N, startSide_=one_of("LEFT", "RIGHT")),
    "hub__list_commits": opened(**REPO, sha_=S, author_=S, **PAGING),
    "hub__run_workflow": opened(**REPO, workflow_id=S, ref=S, inputs_={"type": "object", "properties": {}}),
    "hub__get_job_logs": opened(**REPO, job_id_=N, run_id_=N, failed_only_=B, return_content_=B, tail_lines_=of(N, default=500)),
    "hub__list_code_alerts": opened(**REPO, state_=of(one_of("open", "closed", "dismissed", "fixed"), default="open"), ref_=S, severity_=one_of("critical", "high", "medium", "low", "warning", "note", "error")),
    "hub__create_gist": opened(description_=S, filename=S, content=S, public_=of(B, default=False)),
    "lab__create_merge_request": zod3(project_id_=S, title=S, description_=S, source_branch=S, target_branch=S, draft_=B, allow_collaboration_=B, labels_=many(S), reviewer_ids_=many(N)),
    "lab__create_label": zod3(project_id_=S, name=LABEL, color=of(S, pattern="^#[0-9A-Fa-f]{6}$"), priority_={"type": ["number", "null"]}),
    # chats and mail
    "chat__post_message": opened(channel_id=S, text=S),
    "chat__reply_to_thread": opened(channel_id=S, thread_ts=of(S, pattern=r"^\d{10}\.\d{6}$"), text=S),
    "chat__add_reaction": opened(channel_id=S, timestamp=S, reaction=S),
    "chat__get_channel_history": opened(channel_id=S, limit_=of(N, default=10)),
    "chat__search": zod4(query=of(S, minLength=1), in_channels_=many(of(S, pattern="^[CG][A-Z0-9]{8,}$"), maxItems=20), from_users_=many(S), before_=of(S, format="date"), after_=of(S, format="date"), sort_=of(one_of("score", "timestamp"), default="score"), count_=of(I, minimum=1, maximum=100, default=20)),
    "mail__send": zod4(to=many(EMAIL, minItems=1), cc_=many(EMAIL), subject=of(S, maxLength=998), body=S, mimeType_=of(one_of("text/plain", "text/html"), default="text/plain"), attachments_=many(closed(filename=S, content=of(S, contentEncoding="base64")))),
    "mail__search": zod3(query=S, maxResults_=POSITIVE, labelIds_=many(S), includeSpamTrash_=B),
    "mail__modify_labels": zod3(messageIds=many(S, minItems=1, maxItems=1000), addLabelIds_=many(S), removeLabelIds_=many(S)),
    "calendar__create_event": zod3(calendarId=of(S, default="primary"), summary=S, start=closed(dateTime_=WHEN, date_=of(S, format="date"), timeZone_=S), end=closed(dateTime_=WHEN, date_=of(S, format="date"), timeZone_=S), attendees_=many(closed(email=of(S, format="email"), optional_=B)), recurrence_=many(of(S, pattern="^RRULE:")), reminders_=closed(useDefault=B, overrides_=many(closed(method=of(one_of("email", "popup"), default="popup"), minutes=of(N, minimum=0, maximum=40320))))),
    "calendar__free_busy": zod3(calendars=many(closed(id=S), maxItems=50), timeMin=WHEN, timeMax=WHEN),
    # databases
    "postgres__query": opened(sql=S),
    "postgres__explain": pydantic(sql=S, analyze_=of(B, default=False), hypothetical_indexes_=of(many(ANY_MAP), default=[])),
    "postgres__analyze_indexes": pydantic(queries=many(S), max_index_size_mb_=of(I, default=10000), method_=of({"enum": ["dta", "llm"], "type": "string"}, default="dta")),
    "sqlite__create_table": opened(query=S),
    "mongo__find": zod3(database=S, collection=S, filter_=ANY_MAP, projection_=ANY_MAP, limit_=of(N, default=10), sort_={"type": "object", "additionalProperties": either(of(N, enum=[1, -1]), closed(**{"$meta": {"const": "textScore"}}))}),
    "mongo__aggregate": zod4(database=S, collection=S, pipeline=many(RECORD4), maxTimeMS_=of(SAFE, minimum=1)),
    "redis__set": pydantic(key=S, value=either(S, I, N, ANY_MAP), expiration_=maybe(of(I, minimum=1))),
    "vectors__search": pydantic(query_vector=many(N, minItems=1), limit_=of(I, default=5, minimum=1, maximum=1000), query_filter_=maybe(of(ANY_MAP))),
    "graph__create_entities": zod3(entities=many(closed(name=S, entityType=S, observations=many(S)))),
    "graph__create_relations": zod3(relations=many({"type": "object", "properties": {"from": S, "to": S, "relationType": S}, "required": ["from", "to", "relationType"], "additionalProperties": False})),
    "tables__query": {**zod4(where_=ref("Filter"), limit_=of(SAFE, minimum=1, maximum=500)), "$defs": {"Filter": FILTER}},
    # browsers
    "web__fetch": pydantic(url=of(S, format="uri", minLength=1), max_length_=of(I, default=5000, exclusiveMinimum=0, exclusiveMaximum=1000000), start_index_=of(I, default=0, minimum=0), raw_=of(B, default=False)),
    "browser__navigate": zod4(url=S),
    "browser__click": zod4(**TARGET, doubleClick_=B, button_=CLICK, modifiers_=many(one_of("Alt", "Control", "ControlOrMeta", "Meta", "Shift"))),
    "browser__type": zod4(**TARGET, text=S, submit_=B, slowly_=B),
    "browser__fill_form": zod4(fields=many(closed(name=S, type=one_of("textbox", "checkbox", "radio", "combobox", "slider"), ref=S, value=S))),
    "browser__select_option": zod4(**TARGET, values=many(S)),
    "browser__take_screenshot": zod4(type=of(one_of("png", "jpeg"), default="png"), filename_=S, element_=S, ref_=S, fullPage_=B),
    "browser__wait_for": zod4(time_=N, text_=S, textGone_=S),
    "browser__tabs": zod4(action=one_of("list", "new", "close", "select"), index_=N),
    "browser__drag": zod4(startElement=S, startRef=S, endElement=S, endRef=S),
    "browser__resize": zod4(width=N, height=N),
    "puppet__launch": opened(url=S, launchOptions_={"type": "object"}, allowDangerous_=B),
    "puppet__screenshot": opened(name=S, selector_=S, width_=N, height_=N, encoded_=B),
    "devtools__emulate": zod4(networkConditions_=one_of("No emulation", "Offline", "Slow 3G", "Fast 4G"), cpuThrottlingRate_=of(N, minimum=1, maximum=20), geolocation_=either(closed(latitude=of(N, minimum=-90, maximum=90), longitude=of(N, minimum=-180, maximum=180)), {"type": "null"})),
    # pages and tickets
    "pages__create": opened(parent=PARENT, properties=opened(title_=many(opened(text=opened(content=S)), maxItems=100), type_=one_of("title")), children_=many(S), icon_=S, cover_=S),
    "pages__append_children": opened(block_id=S, children=many(opened(paragraph_=opened(rich_text=many(RICH_TEXT, maxItems=100)), type_=one_of("paragraph", "bulleted_list_item")), maxItems=100), after_=S),
    "pages__query_database": opened(database_id=S, filter_=opened(or_=many(ANY_MAP), and_=many(ANY_MAP)), sorts_=many(opened(property=S, direction=one_of("ascending", "descending"))), start_cursor_=S, page_size_=of(I, default=100), archived_=B),
    "pages__write_blocks": {**pydantic(page=of(UUID)), "properties": {"page": UUID, "blocks": many(ref("Block"))}, "$defs": {"Block": BLOCK}},
    "tickets__search": pydantic(jql=S, fields_=of(S, default="summary,status"), limit_=of(I, default=10, minimum=1, maximum=50), start_at_=of(I, default=0, minimum=0), expand_=maybe(S)),
    "tickets__create_issue": pydantic(project_key=of(S, pattern="^[A-Z][A-Z0-9_]+$"), summary=S, issue_type=S, assignee_=maybe(S), description_=maybe(S), components_=maybe(S), additional_fields_=maybe(either(of(ANY_MAP, additionalProperties=True), S))),
    "tickets__transition": pydantic(issue_key=of(S, pattern="^[A-Z][A-Z0-9_]+-[0-9]+$"), transition_id=S, fields_=maybe(ANY_MAP), comment_=maybe(S)),
    "tickets__add_worklog": pydantic(issue_key=S, time_spent=of(S, pattern=r"^(\d+[wdhm]\s?)+$"), started_=maybe(S), remaining_estimate_=maybe(S)),
    "linear__update_issue": zod4(id=S, title_=S, priority_=of(N, minimum=0, maximum=4), estimate_=either(N, {"type": "null"}), dueDate_=of(S, format="date"), labels_=many(S), links_=many(closed(url=URI, title=of(S, minLength=1)))),
    "errors__search_events": zod4(organizationSlug=of(S, pattern="^[a-z0-9][a-z0-9-]*$"), naturalLanguageQuery=of(S, minLength=1), projectSlug_=either(S, {"type": "null"}), regionUrl_=either(URI, {"type": "null"}), limit_=of(N, minimum=1, maximum=100, default=10)),
    # money, places, weather, machines
    "pay__create_price": zod3(product=S, unit_amount=I, currency=of(S, minLength=3, maxLength=3), recurring_=closed(interval=one_of("day", "week", "month", "year"), interval_count_=POSITIVE)),
    "pay__list_invoices": zod3(customer_=S, limit_=of(I, minimum=1, maximum=100)),
    "pay__refund": pydantic(charge=S, amount_=maybe(MONEY), reason_=maybe(one_of("duplicate", "fraudulent", "requested_by_customer"))),
    "maps__directions": pydantic({"Point": POINT}, origin=ref("Point"), destination=ref("Point"), mode_=of(one_of("driving", "walking", "bicycling", "transit"), default="driving"), via_=maybe(many(ref("Point"), maxItems=8))),
    "maps__bounding_box": pydantic(box={"type": "array", "prefixItems": [N, N, N, N], "minItems": 4, "maxItems": 4}, tags_=of(many(S, uniqueItems=True), default=[])),
    "weather__forecast": older({"Unit": one_of("celsius", "fahrenheit")}, city=S, days_=of(I, default=3, minimum=1, maximum=14), unit_={"allOf": [ref("Unit", "definitions")], "default": "celsius"}),
    "cloud__run_instances": opened(image=of(S, pattern="^ami-[0-9a-f]{8,17}$"), count_=of(I, format="int32", minimum=1), tags_=many(opened(Key=of(S, maxLength=128), Value=of(S, maxLength=256)), maxItems=50), userData_=of(S, nullable=True)),
    "cluster__apply": opened(manifest=of(ANY_MAP, additionalProperties=True), namespace_=of(S, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", maxLength=63), dryRun_=of(one_of("None", "Server", "Client"), default="None")),
    "cluster__scale": opened(kind=one_of("Deployment", "StatefulSet"), name=of(S, minLength=1, maxLength=253), replicas=of(I, format="int32", minimum=0)),
    "home__light_turn_on": opened(entity_id=either(S, many(S)), brightness_pct_=of(I, minimum=0, maximum=100), rgb_color_={"type": "array", "items": of(I, minimum=0, maximum=255), "minItems": 3, "maxItems": 3}, transition_=of(N, minimum=0, maximum=300)),
    "think__sequential": zod3(thought=S, nextThoughtNeeded=B, thoughtNumber=of(I, minimum=1), totalThoughts=of(I, minimum=1), isRevision_=B, revisesThought_=of(I, minimum=1), branchId_=S),
    # coding agents and kits
    "code__bash": zod4(command=S, timeout_=of(N, maximum=600000), description_=S, run_in_background_=B),
    "code__grep": zod4(**{"pattern": S, "path_": S, "glob_": S, "output_mode_": one_of("content", "files_with_matches", "count"), "-B_": N, "-A_": N, "-n_": B, "-i_": B, "head_limit_": N, "multiline_": B}),
    "code__todo_write": zod4(todos=many(TASK)),
    "code__ask_user": zod4(questions=many(closed(question=S, header=S, options=many(closed(label=S, description=S), minItems=2, maxItems=4), multiSelect=B), minItems=1, maxItems=4), answers_=of(RECORD4, additionalProperties=S)),
    "code__shell": opened(command=many(S), workdir_=S, timeout_ms_=N),
    "kit__book_flight": agents(origin=of(S, pattern="^[A-Z]{3}$"), destination=of(S, pattern="^[A-Z]{3}$"), date=of(S, format="date"), seat_=one_of("aisle", "window"), passengers=many(agents(name=S, age_=I))),
    "kit__lookup_order": older(order_id=of(I, exclusiveMinimum=0, maximum=2147483647), email_=of(S, format="email"), note_=of(TEXT_MAP)),
}  # fmt: skip
"""The arguments of each tool, by its name."""
