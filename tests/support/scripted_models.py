"""Models for agent frameworks. Each model follows a script.

The module is imported in an environment with the framework. A model adds the result of each call to a list. The script
gets this list and returns the next call as the tool's name and its arguments, or None at the end. The frameworks differ
in the form of a result.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

DONE = "Done."
"""The last answer of every model."""
Script = Callable[[list[Any]], tuple[str, Mapping[str, Any]] | None]


def openai_model(script: Script, results: list[Any]) -> Any:
    """Return a model of the OpenAI Agents SDK. In strict mode, the model passes null for an absent argument."""
    agents, usage = importlib.import_module("agents"), importlib.import_module("agents.usage")
    responses = importlib.import_module("openai.types.responses")
    agents.set_tracing_disabled(disabled=True)

    class Scripted(agents.Model):  # type: ignore[misc,name-defined]
        async def get_response(self, **request: Any) -> Any:
            tools, history = {tool.name: tool for tool in request["tools"]}, request["input"]
            if not tools or not all(tool.strict_json_schema for tool in tools.values()):
                raise AssertionError(f"not strict: {list(tools)}")
            if isinstance(history, list) and history[-1].get("type") == "function_call_output":
                results.append(history[-1]["output"])
            call = script(results)
            if call is None:
                said = responses.ResponseOutputText(text=DONE, type="output_text", annotations=[])
                kinds = {"type": "message", "role": "assistant", "status": "completed"}
                item = responses.ResponseOutputMessage(id="message", content=[said], **kinds)
            else:
                name, given = call
                arguments = {one: given.get(one) for one in tools[name].params_json_schema["required"]}
                kinds = {"type": "function_call", "name": name, "call_id": f"call-{len(results)}"}
                item = responses.ResponseFunctionToolCall(arguments=json.dumps(arguments), **kinds)
            return agents.ModelResponse(output=[item], usage=usage.Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    return Scripted()


def langchain_model(script: Script, results: list[Any]) -> Any:
    """Return a chat model of LangChain."""
    models = importlib.import_module("langchain_core.language_models")
    outputs, messages = (importlib.import_module(f"langchain_core.{name}") for name in ("outputs", "messages"))

    class Scripted(models.BaseChatModel):  # type: ignore[misc,name-defined]
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

        def _generate(self, history: list[Any], *_: Any, **__: Any) -> Any:
            if history[-1].type == "tool":
                results.append(history[-1].content)
            call = script(results)
            calls = [] if call is None else [{"name": call[0], "args": call[1], "id": f"call-{len(results)}"}]
            message = messages.AIMessage(DONE if call is None else "", tool_calls=calls)
            return outputs.ChatResult(generations=[outputs.ChatGeneration(message=message)])

    return Scripted()


def pydantic_model(script: Script, results: list[Any]) -> Any:
    """Return a model of Pydantic AI. The model repeats a call that has failed."""
    messages, function = (importlib.import_module(f"pydantic_ai.{name}") for name in ("messages", "models.function"))

    def model(history: list[Any], _info: Any) -> Any:
        results.extend(part.content for part in history[-1].parts if part.part_kind == "tool-return")
        call = script(results)
        part = messages.TextPart(DONE) if call is None else messages.ToolCallPart(*call)
        return messages.ModelResponse(parts=[part])

    return function.FunctionModel(model)
