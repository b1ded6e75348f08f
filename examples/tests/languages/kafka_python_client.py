"""A program with kafka-python; what it does is asked for on standard input."""

import json
import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

asked = json.load(sys.stdin)


def publish():
    page = compile(asked["page"], "docs/PUBLISHING.md", "exec")
    for event_id in asked["ids"]:
        exec(page, {"KafkaProducer": KafkaProducer, "event_id": event_id, "body": asked["body"].encode()})
    producer = KafkaProducer(bootstrap_servers=asked["servers"], acks="all")
    for message in asked["messages"]:
        headers = [(name, value.encode()) for name, value in message["headers"].items()]
        producer.send(asked["topic"], message["body"].encode(), key=message["key"].encode(), headers=headers).get(30)


def read():
    consumer = KafkaConsumer(bootstrap_servers=asked["servers"], auto_offset_reset="earliest",
                             consumer_timeout_ms=30_000)
    # A group takes some seconds to join. The topic has one partition.
    consumer.assign([TopicPartition(asked["topic"], 0)])
    record = next(consumer)
    headers = {name: value.decode() for name, value in record.headers}
    print(json.dumps({"key": record.key.decode(), "headers": headers, "body": record.value.decode()}))


{"publish": publish, "read": read}[asked["do"]]()
