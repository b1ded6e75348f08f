"""moto's server, with what SQS promises and moto 5.2.5 does not keep.

moto answers every request in a thread of its own and changes its lists without a lock: two deletes at once undo each other,
a send beside a delete is lost, two receives get the same message. That would be moto's fault in every test.
"""

import sys
import threading
import time

from moto.server import main
from moto.sqs import models
from moto.sqs.exceptions import ReceiptHandleIsInvalid
from moto.sqs.models import Queue, SQSBackend

LOCK = threading.RLock()
# Between two looks of a receive that waits.
LOOK_SECONDS = 0.02


COUNTS = [
    "approximate_number_of_messages",
    "approximate_number_of_messages_delayed",
    "approximate_number_of_messages_not_visible",
]
# Whether somebody asks for them.
counting = True


def counted(count):
    return property(lambda queue: count(queue) if counting else 0)


def uncounted(call):
    """moto counts all messages of the queue several times for each one that is sent or received."""

    def without_counting(*args, **kwargs):
        global counting
        with LOCK:
            before, counting = counting, False
            try:
                return call(*args, **kwargs)
            finally:
                counting = before

    return without_counting


def locked(call):
    """One request after the other."""

    def after_the_others(*args, **kwargs):
        with LOCK:
            return call(*args, **kwargs)

    return after_the_others


def receive(once):
    """Waits without the lock, and knows at every look which messages are visible and which groups are held.

    moto asks that once, so that a receive that waits hands out a group which another one holds; and it forgets that a
    lease has ended when it comes to the message, so that of a group whose leases have all ended it hands out the last
    message first.
    """

    def look_until(self, queue_name, count, wait_seconds_timeout, visibility_timeout, message_attribute_names=None):
        end = time.monotonic() + wait_seconds_timeout
        while True:
            with LOCK:
                pending = self.get_queue(queue_name).pending_messages
                for message in [message for message in pending if message.visible]:
                    pending.discard(message)
                found = once(self, queue_name, count, 0, visibility_timeout, message_attribute_names)
            if found or time.monotonic() >= end:
                return found
            time.sleep(LOOK_SECONDS)

    return look_until


def held(queue, receipt_handle):
    """Whether it is the last receipt handle of a message whose lease has not ended; of others moto makes no difference."""
    return any(m.receipt_handle == receipt_handle and not m.visible for m in queue._messages)


def delete(once):
    """A FIFO queue refuses a receipt handle that has expired; another one takes an old one, and does nothing."""

    def delete_held(self, receipt_handle):
        if receipt_handle in self.deleted_messages or held(self, receipt_handle):
            return once(self, receipt_handle)
        if self.fifo_queue or not any(m.had_receipt_handle(receipt_handle) for m in self._messages):
            raise ReceiptHandleIsInvalid()
        if any(m.receipt_handle == receipt_handle for m in self._messages):
            return once(self, receipt_handle)
        return None

    return delete_held


def change_visibility(once):
    """What is not held stays visible."""

    def change_held(self, queue_name, receipt_handle, visibility_timeout):
        if not held(self.get_queue(queue_name), receipt_handle):
            raise ReceiptHandleIsInvalid()
        return once(self, queue_name, receipt_handle, visibility_timeout)

    return change_held


Queue.delete_message = delete(Queue.delete_message)
SQSBackend.change_message_visibility = change_visibility(SQSBackend.change_message_visibility)
SQSBackend.receive_message = receive(uncounted(SQSBackend.receive_message))
SQSBackend.send_message = uncounted(SQSBackend.send_message)
SQSBackend.send_message_batch = uncounted(SQSBackend.send_message_batch)
for name in COUNTS:
    setattr(Queue, name, counted(getattr(Queue, name).fget))
# Asked for each message at each look; moto's own takes a microsecond and more.
models.unix_time_millis = lambda: time.time() * 1000
for name in [
    "change_message_visibility",
    "change_message_visibility_batch",
    "create_queue",
    "delete_message",
    "delete_message_batch",
    "delete_queue",
    "get_queue_attributes",
    "purge_queue",
]:
    setattr(SQSBackend, name, locked(getattr(SQSBackend, name)))

sys.exit(main())
