"""The Jinja template of the report."""

TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ summary.name }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #222; background: #fff; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem; text-align: right;
  border-bottom: 1px solid #ddd; } td:first-child, th:first-child { text-align: left; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: .85rem; }
img { max-width: 100%; } .valid { color: #237a3b; } .invalid { color: #b3261e; }
.note { color: #666; font-size: .9rem; }
</style>
</head>
<body>
<h1>{{ summary.name }}</h1>
{% if summary.valid %}<p class="valid">Valid: every run is what the spec says.</p>
{% else %}<p class="invalid">Not valid; the figures below are no result.</p>
<ul class="invalid">
{% for reason in summary.invalid_reasons %}<li>{{ reason }}</li>{% endfor %}</ul>
{% endif %}

<h2>Against stock</h2>
<table>
<tr><th>arm</th><th>output tok/s</th><th>95 % interval</th><th>median ITL</th><th>95 % interval</th>
<th>equal outputs</th><th>equal until first difference</th></tr>
{% for arm, ratio in summary.ratios.items() %}
<tr><td>{{ arm }}</td>
{% for name in ("output_tok_s", "itl_p50") %}
<td>{{ ratio[name].estimate | number(3) }}</td>
<td>{% if ratio[name].ci95 %}{{ ratio[name].ci95[0] | number(3) }} to
{{ ratio[name].ci95[1] | number(3) }}{% else %}n/a{% endif %}</td>
{% endfor %}
<td>{{ summary.parity[arm].equal_share | share }}</td>
<td>{{ summary.parity[arm].equal_prefix_share | share }}</td></tr>
{% endfor %}
</table>
<p class="note">Arm divided by stock; geometric mean over pairs, t-interval on log ratios,
window {{ summary.window }}.</p>

<h2>Arms</h2>
<table>
<tr><th>arm</th><th>output tok/s</th><th>ITL p50 ms</th><th>ITL p99 ms</th><th>TTFT p50 ms</th>
<th>requests</th><th>cache as expected</th><th>sparsity, target</th><th>realised</th></tr>
{% for name, arm in summary.arms.items() %}
<tr><td>{{ name }}</td><td>{{ arm.output_tok_s | number(1) }}</td><td>{{ arm.itl_ms.p50 | number }}
</td><td>{{ arm.itl_ms.p99 | number }}</td><td>{{ arm.ttft_ms.p50 | number(0) }}</td>
<td>{{ arm.requests.ok }}/{{ arm.requests.total }}</td>
<td>{{ "yes" if arm.cached_tokens_ok else "no" }}</td>
{% if arm.spin %}<td>{{ arm.spin.target_sparsity | number }}</td>
<td>{{ arm.spin.realised_sparsity | number(3) }}</td>{% else %}<td>off</td><td></td>{% endif %}</tr>
{% endfor %}
</table>

{% for name, data in images.items() %}
<p><img alt="{{ name }}" src="data:image/png;base64,{{ data }}"></p>
{% endfor %}

<h2>Runs</h2>
<table>
<tr><th>run</th><th>place</th><th>output tok/s</th><th>full run</th><th>ITL p50 ms</th>
<th>ITL p99 ms</th><th>TTFT p50 ms</th><th>window s</th><th>client lag p99 ms</th><th>warm</th></tr>
{% for run in summary.runs %}
<tr><td>pair {{ run.pair + 1 }} {{ run.arm }}</td><td>{{ run.position + 1 }}</td>
<td>{{ run.output_tok_s | number(1) }}</td>
<td>{{ run.output_tok_s_by_window.full_run | number(1) }}</td>
<td>{{ run.itl_ms.p50 | number }}</td><td>{{ run.itl_ms.p99 | number }}</td>
<td>{{ run.ttft_ms.p50 | number(0) }}</td><td>{{ run.window_s | number(1) }}</td>
<td>{{ run.client.loop_lag_ms_p99 | number }}</td>
<td>{{ "steady" if run.warm_steady else "not steady" }}</td></tr>
{% endfor %}
</table>

{% for note in summary.notes %}<p class="note">{{ note }}</p>
{% endfor %}
<h2>Spec</h2>
<pre>{{ spec_yaml }}</pre>

<h2>Environment</h2>
<pre>{% for key, value in env.items() if key != "servers" %}{{ key }}: {{ value }}
{% endfor %}{% for name, info in env.servers.items() %}server of {{ name }}: version {{
info.version or "unknown" }}
{% endfor %}</pre>
</body>
</html>
"""
