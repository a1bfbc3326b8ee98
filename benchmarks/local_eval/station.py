"""The workspace of the tasks that no prompt was tuned on."""

from textwrap import dedent

STATION = {
    "README.md": dedent(
        """\
        # Weather station

        Reads sensors and keeps a log. Start it with `python -m station`.
        Written by Tomas Lind. Licence: MIT.
        """
    ),
    "pyproject.toml": dedent(
        """\
        [project]
        name = "station"
        version = "0.4.2"
        requires-python = ">=3.12"
        """
    ),
    "station/__init__.py": "",
    "station/sensors.py": dedent(
        '''\
        """Asks the sensors on the roof."""

        RETRIES = 3


        class Sensor:
            def __init__(self, port):
                self.port = port

            def temperature(self):
                for _ in range(RETRIES):
                    answer = self.port.ask("T?")
                    if answer:
                        return float(answer)
                raise TimeoutError("the sensor is silent")
        '''
    ),
    "station/convert.py": dedent(
        '''\
        """Units."""


        def to_fahrenheit(celsius):
            return celsius * 9 / 5 + 32


        def to_knots(metres_per_second):
            return metres_per_second / 1.944
        '''
    ),
    "station/storage.py": dedent(
        '''\
        """Keeps what was measured."""


        def save(path, rows):
            # FIXME: a crash leaves half a line
            with open(path, "a") as file:
                for row in rows:
                    file.write(",".join(map(str, row)) + "\\n")
        '''
    ),
    "station/alarm.py": dedent(
        '''\
        """Says when somebody should be called."""

        from station.sensors import Sensor

        LIMIT = 35


        def is_alarm(sensor: Sensor, lightning=False):
            return lightning or sensor.temperature() > LIMIT
        '''
    ),
    "tests/test_convert.py": dedent(
        """\
        from station.convert import to_fahrenheit


        def test_boiling():
            assert to_fahrenheit(100) == 212
        """
    ),
    "docs/install.md": dedent(
        """\
        Screw the sensor to the roof, plug it in and wait ten minutes. The green lamp says that it is ready.
        """
    ),
    "data/may.csv": dedent(
        """\
        day,low,high
        1,6,17
        2,8,21
        3,11,24
        """
    ),
}
