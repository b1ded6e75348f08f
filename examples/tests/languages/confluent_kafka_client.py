"""A program with confluent-kafka; what it does is asked for on standard input."""

import json
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

asked = json.load(sys.stdin)
servers = {"bootstrap.servers": asked["servers"]}


def publish():
    failed = []
    page = compile(asked["page"], "docs/PUBLISHING.md", "exec")
    for event_id in asked["ids"]:
        exec(page, {"Producer": Producer, "event_id": event_id, "body": asked["body"], "failed": failed})
    producer = Producer(servers | {"acks": "all"})
    for message in asked["messages"]:
        producer.produce(asked["topic"], message["body"], key=message["key"], headers=message["headers"],
                         on_delivery=lambda error, _: failed.append(str(error)) if error else None)
    producer.flush()
    assert not failed, failed


def read():
    consumer = Consumer(servers | {"group.id": asked["topic"]})
    # A group takes some seconds to join. The topic has one partition.
    consumer.assign([TopicPartition(asked["topic"], 0, OFFSET_BEGINNING)])
    record = consumer.poll(30)
    assert record and not record.error(), record and record.error()
    consumer.close()
    headers = {name: value.decode() for name, value in record.headers()}
    print(json.dumps({"key": record.key().decode(), "headers": headers, "body": record.value().decode()}))


def remove():
    admin = AdminClient(servers)  # has to live as long as what it is asked for
    for removed in admin.delete_topics([asked["topic"]]).values():
        removed.result()


{"publish": publish, "read": read, "remove": remove}[asked["do"]]()
