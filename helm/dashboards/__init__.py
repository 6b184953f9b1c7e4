"""The dashboards of the chart, in one source: `make dashboards` writes their JSON to helm/rljob-operator/dashboards.

A module for each dashboard; `panels` has what they are made of. Nothing of the product imports this. What a panel asks
for is checked against what is exported (tests/unit/helm/test_dashboards.py), and by a real Prometheus
(tests/cluster/test_monitoring.py).
"""
