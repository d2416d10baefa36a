"""A request for each route that reads a body, as `/docs` fills it in: each runs on a service as it starts.

By path behind `/collections/{collection}`; SUMMARIES names the operations by method and path.
"""

from typing import Any

_PAIR = {"source_sentence": "How old are you?", "sentences": ["What is your age?", "It rains."]}
BODIES: dict[str, Any] = {
    "/": {"inputs": ["A first sentence.", "A second one."]},
    "/embed": {"inputs": ["A first sentence.", "A second one."]},
    "/similarity": {"inputs": _PAIR},
    "/tokenize": {"inputs": "A first sentence."},
    "/decode": {"ids": [[5, 6, 7]]},
    "/embeddings": {"input": ["A first sentence.", "A second one."], "model": "simile"},
    "/v1/embeddings": {"input": ["A first sentence.", "A second one."], "model": "simile"},
    "/v2/embed": {"texts": ["A first sentence."], "model": "simile", "embedding_types": ["float"]},
    "/search": {"queries": ["how do I get my money back"], "k": 3},
    "/documents": {
        "documents": [
            {
                "id": "refund",
                "title": "Refunds",
                "text": "Unused goods may be sent back.",
                "metadata": {"topic": "support"},
            }
        ]
    },
    "/events": {
        "search_id": "made-up",
        "query": "how do I get my money back",
        "id": "refund",
        "type": "click",
        "shown": ["refund"],
    },
    "/feedback": {"query": "how do I get my money back", "id": "refund", "relevant": True},
}

SUMMARIES = {
    "post /": "Embed texts, or compare one with others",
    "post /embed": "Embed texts",
    "post /similarity": "Compare texts",
    "post /tokenize": "Split texts into tokens",
    "post /decode": "Turn token ids into texts",
    "post /embeddings": "Embed texts (OpenAI, without /v1)",
    "post /v1/embeddings": "Embed texts (OpenAI)",
    "get /v1/models": "List versions (OpenAI)",
    "post /v2/embed": "Embed texts (Cohere)",
    "get /search": "Search for one query",
    "post /search": "Search for several queries",
    "post /documents": "Store documents",
    "get /documents": "List documents",
    "delete /documents": "Delete the documents that a filter selects",
    "get /documents/count": "Count documents",
    "get /documents/{id}": "Read a document",
    "delete /documents/{id}": "Delete a document",
    "post /files": "Store the rows of a file",
    "post /files/preview": "Show how a file reads",
    "post /feedback": "Store judgements of hits",
    "get /feedback": "List judgements",
    "delete /feedback": "Delete judgements",
    "get /feedback/count": "Count judgements",
    "post /events": "Store what users did with hits",
    "get /events": "List events",
    "delete /events": "Delete events",
    "get /events/count": "Count events",
    "get /collections": "List collections",
    "delete /collections/{collection}": "Delete a collection",
    "get /examples": "Read the example texts",
    "get /map": "Read the map of the documents",
    "get /info": "Describe the service and its model",
    "get /models": "List versions and their states",
    "get /models/{version}/report": "Read a version's report",
    "get /models/{version}/report/{file}": "Read a version's report as a page",
    "post /models/{version}/activate": "Activate a version",
    "post /models/{version}/keep": "Keep a version beside the live one",
    "post /models/rollback": "Go back to the previous version",
    "get /health": "Tell whether the model answers",
    "get /ready": "Tell whether the service takes work",
    "get /metrics": "Read metrics",
    "get /": "Find the page and the API's description",
    "get /me": "Tell whose key this is",
    "get /feedback/summary": "Sum up judgements",
}
