"""The web console: a Kafka client with pages, for Penstock and for any other Kafka cluster.

It is always a client, and has no rights of its own: whoever looks at a page acts with the rights of the user
who logged in, or of the connection that the console was given. `penstock console` runs it alone; a broker
with `--http` runs it in a process of its own behind the same port (`web/relay.py`), so that nothing that a
page does takes time from the broker.

A page is one module in `pages/`, with its routes, and its templates in `templates/`:

    @page("/topics/{name}")                    # GET; POST with method="POST": a form, checked for its token
    def show(visit: Visit) -> Response:        # runs in a thread, and may block
        with visit.client() as client:         # the visitor's own rights
            ...
        return visit.render("topic.html", topic=...)

`pages/__init__.py` names the modules, and the menu. A ClientError that a page does not catch is shown as a
page with its sentence, and the status that fits the error code.
"""
