"""What TensorBoard's own reader finds in the event files of a folder, as JSON."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "images": 0})
events.Reload()
tags = events.Tags()


def histogram(value):
    fields = ("min", "max", "num", "sum", "sum_squares", "bucket_limit", "bucket")
    return {name: getattr(value, name) for name in fields}


print(json.dumps({
    "scalars": {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]},
    "histograms": {tag: [[e.step, histogram(e.histogram_value)] for e in events.Histograms(tag)]
                   for tag in tags["histograms"]},
    "images": {tag: [[e.step, e.width, e.height, e.encoded_image_string.hex()] for e in events.Images(tag)]
               for tag in tags["images"]},
}))
