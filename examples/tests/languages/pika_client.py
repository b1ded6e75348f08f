"""A program with pika; what it does is asked for on standard input."""

import json
import sys

import pika
import pika.exceptions

asked = json.load(sys.stdin)
connection = pika.BlockingConnection(pika.URLParameters(asked["url"]))
channel = connection.channel()


def publish():
    names = {"pika": pika, "channel": channel, "body": asked["body"].encode()}
    for event_id in asked["ids"]:
        exec(compile(asked["page"], "docs/PUBLISHING.md", "exec"), names | {"event_id": event_id})
    for message in asked["messages"]:
        properties = pika.BasicProperties(**message["properties"], headers=message["headers"], delivery_mode=2)
        channel.basic_publish("", asked["queue"], message["body"].encode(), mandatory=True, properties=properties)


def publish_unroutable():
    names = {"pika": pika, "channel": channel, "body": asked["body"].encode(), "event_id": "lost"}
    try:
        exec(compile(asked["page"], "docs/PUBLISHING.md", "exec"), names)
        print(json.dumps({"raised": None}))
    except pika.exceptions.UnroutableError as error:
        print(json.dumps({"raised": [message.properties.message_id for message in error.messages]}))


def read():
    method, properties, body = channel.basic_get(asked["queue"], auto_ack=True)
    assert method, "the queue is empty"
    names = ["message_id", "type", "content_type", "delivery_mode"]
    found = {name: getattr(properties, name) for name in names}
    print(json.dumps({"properties": found, "headers": properties.headers, "body": body.decode()}))


def remove():
    channel.queue_delete(asked["queue"])
    if "exchange" in asked:
        channel.exchange_delete(asked["exchange"])


actions = {"publish": publish, "publish_unroutable": publish_unroutable, "read": read, "remove": remove}
actions[asked["do"]]()
connection.close()
