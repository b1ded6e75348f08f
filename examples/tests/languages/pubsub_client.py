"""A program with google-cloud-pubsub; what it does is asked for on standard input.

The client finds the emulator by the variable PUBSUB_EMULATOR_HOST.
"""

import json
import sys

from google.cloud import pubsub_v1

asked = json.load(sys.stdin)
topic, subscription = asked["topic"], asked["subscription"]


def publish():
    page = compile(asked["page"], "docs/PUBLISHING.md", "exec")
    for event_id in asked["ids"]:
        names = {"pubsub_v1": pubsub_v1, "topic": topic, "event_id": event_id, "body": asked["body"].encode()}
        exec(page, names)
    publisher = pubsub_v1.PublisherClient(
        publisher_options=pubsub_v1.types.PublisherOptions(enable_message_ordering=True))
    for message in asked["messages"]:
        future = publisher.publish(topic, message["body"].encode(), ordering_key=message["key"],
                                   **message["attributes"])
        future.result(30)


def read():
    with pubsub_v1.SubscriberClient() as subscriber:
        found = subscriber.pull(subscription=subscription, max_messages=1, timeout=30)
        message = found.received_messages[0].message
        subscriber.acknowledge(subscription=subscription, ack_ids=[found.received_messages[0].ack_id])
    print(json.dumps({"attributes": dict(message.attributes), "key": message.ordering_key,
                      "body": message.data.decode()}))


def remove():
    with pubsub_v1.SubscriberClient() as subscriber:
        subscriber.delete_subscription(subscription=subscription)
    pubsub_v1.PublisherClient().delete_topic(topic=topic)


{"publish": publish, "read": read, "remove": remove}[asked["do"]]()
