"""A program with boto3; what it does is asked for on standard input."""

import json
import sys

import boto3

asked = json.load(sys.stdin)
sqs = boto3.client("sqs", endpoint_url=asked["endpoint"], region_name="us-east-1", aws_access_key_id="test",
                   aws_secret_access_key="test")
url = sqs.get_queue_url(QueueName=asked["queue"])["QueueUrl"]


def publish():
    page = compile(asked["page"], "docs/PUBLISHING.md", "exec")
    for event_id in asked["ids"]:
        exec(page, {"sqs": sqs, "url": url, "event_id": event_id, "body": asked["body"]})
    for message in asked["messages"]:
        attributes = {name: {"DataType": "String", "StringValue": value}
                      for name, value in message["attributes"].items()}
        sqs.send_message(QueueUrl=url, MessageBody=message["body"], MessageAttributes=attributes, **message["fifo"])


def read():
    found = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20, MessageAttributeNames=["All"],
                                MessageSystemAttributeNames=["MessageGroupId"])
    message = found["Messages"][0]
    attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    group = message.get("Attributes", {}).get("MessageGroupId")
    print(json.dumps({"attributes": attributes, "group": group, "body": message["Body"]}))


def remove():
    sqs.delete_queue(QueueUrl=url)


{"publish": publish, "read": read, "remove": remove}[asked["do"]]()
