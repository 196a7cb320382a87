"""A client of the Lambda Invoke API, whose errors are those of an invoker.

The client never repeats an invocation by itself: its retries are off, and its read timeout exceeds that of a function.
"""

import json
import os
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from weft.errors import UserError
from weft.serverless.invoker import Lost, Throttled

CONNECT_SECONDS = 10
_THROTTLED = ("TooManyRequestsException", "ThrottlingException", "EC2ThrottledException")
_PERMANENT = ("ResourceNotFoundException", "AccessDeniedException", "UnrecognizedClientException")


def make_client(endpoint: str | None, timeout_seconds: float, connections: int) -> Any:
    """A client that tries once, and waits for a response for `timeout_seconds`."""
    config = Config(
        retries={"total_max_attempts": 1},
        read_timeout=timeout_seconds,
        connect_timeout=CONNECT_SECONDS,
        max_pool_connections=connections,
    )
    try:
        region = os.environ.get("AWS_REGION")  # boto3 itself reads only AWS_DEFAULT_REGION and its files
        return boto3.client("lambda", region_name=region, endpoint_url=endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise UserError(
            f"executor lambda has no account to work with ({error}): set AWS_REGION and credentials, or "
            "executor.endpoint"
        ) from None


def invoke(client: Any, function: str, event: dict[str, Any]) -> dict[str, Any]:
    """One invocation; raises Throttled or Lost, or UserError if a retry cannot succeed."""
    try:
        response = client.invoke(FunctionName=function, Payload=json.dumps(event).encode())
        payload = json.loads(response["Payload"].read() or b"{}")
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _THROTTLED:
            raise Throttled(str(error)) from None
        if code in _PERMANENT:
            raise UserError(
                f"function {function} cannot be invoked ({error}): deploy it with 'weft lambda package', and see that "
                "the policy that it prints is granted"
            ) from None
        raise Lost(str(error)) from None
    except (BotoCoreError, OSError, ValueError) as error:
        raise Lost(f"{type(error).__name__}: {error}") from None
    if response.get("FunctionError"):
        fault = payload if isinstance(payload, dict) else {}
        raise Lost(f"function {function}: {fault.get('errorType')}: {fault.get('errorMessage')}")
    if not isinstance(payload, dict):
        raise Lost(f"function {function} returned something that is not an object")
    return payload
