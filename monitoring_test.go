package orlop

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/orlop-os/orlop/metricsd"
	"github.com/orlop-os/orlop/pkg/paths"
)

// exportedNames are the files with the names of the exported metrics. The tests of the packages
// that export the metrics write the files.
var exportedNames = []string{
	"metricsd/host/testdata/names.txt", "machined/machinemetrics/testdata/names.txt", "orchestrator/exporter/testdata/etcd.txt", "orchestrator/exporter/testdata/scheduler.txt",
}

// readMonitoring reads a file of docs/monitoring.
func readMonitoring(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("docs", "monitoring", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// exported returns the names of all metrics that machines export, and of the metric up.
func exported(t *testing.T) []string {
	t.Helper()
	names := []string{"up"} // of Prometheus itself
	for _, file := range exportedNames {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.Fields(string(text))...)
	}
	return names
}

var (
	// withoutNames matches the parts of an expression without names of metrics: strings, matchers
	// of labels, lists of labels, and durations.
	withoutNames = regexp.MustCompile(`"[^"]*"|\{[^}]*\}|\b(?:by|without|on)\s*\([^)]*\)|\[[^\]]*\]`)
	word         = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\s*\(?`)
	// histogram matches the suffixes of the series of a histogram.
	histogram = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// metricsIn returns the names of metrics in an expression of PromQL.
func metricsIn(expression string) (names []string) {
	rest := withoutNames.ReplaceAllStringFunc(expression, func(s string) string {
		if s[0] == '{' {
			return " {}"
		}
		return " "
	})
	for _, w := range word.FindAllString(rest, -1) {
		w = strings.TrimSpace(w)
		if !strings.HasSuffix(w, "(") && !slices.Contains([]string{"and", "or", "unless", "by", "without", "on", "bool"}, w) {
			names = append(names, w)
		}
	}
	return names
}

// checkExpression checks that each metric in an expression is exported.
func checkExpression(t *testing.T, where, expression string, known []string) {
	t.Helper()
	names := metricsIn(expression)
	if len(names) == 0 {
		t.Errorf("%s: no metric in %s", where, expression)
	}
	for _, name := range names {
		if !slices.Contains(known, name) && !slices.Contains(known, histogram.ReplaceAllString(name, "")) {
			t.Errorf("%s: no machine exports %s", where, name)
		}
	}
}

// TestMetricsIn checks the reader of expressions.
func TestMetricsIn(t *testing.T) {
	for expression, want := range map[string]string{
		`up{job=~"a|b"} == 0`:                             "up",
		`sum by (node) (rate(a_total{x="y(z)"}[5m])) / b`: "a_total b",
		`histogram_quantile(0.99, sum by (le) (rate(c_bucket[1h]))) > 0.5 and on (x) d - time()`: "c_bucket d",
		`1 > 0`: "",
	} {
		if got := strings.Join(metricsIn(expression), " "); got != want {
			t.Errorf("%s: %q; want %q", expression, got, want)
		}
	}
}

// TestDashboard checks that each query of the dashboard uses metrics that exist.
func TestDashboard(t *testing.T) {
	var d struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(readMonitoring(t, "dashboard.json"), &d); err != nil {
		t.Fatal(err)
	}
	known, queries := exported(t), 0
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			queries++
			checkExpression(t, "panel "+p.Title, q.Expr, known)
		}
	}
	if queries < 20 {
		t.Errorf("the dashboard has %d queries", queries)
	}
}

// TestAlerts checks that each alert uses metrics that exist, and links to a task of the runbook.
func TestAlerts(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Labels      struct{ Severity string }
				Annotations struct {
					Summary string
					Runbook string `yaml:"runbook_url"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(readMonitoring(t, "rules.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile("docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	anchors := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^### (.*)$`).FindAllStringSubmatch(string(runbook), -1) {
		plain := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(h[1]), "")
		anchors[strings.ReplaceAll(plain, " ", "-")] = true
	}
	known, alerts := exported(t), 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			alerts++
			checkExpression(t, "alert "+r.Alert, r.Expr, known)
			if r.Labels.Severity != "warning" && r.Labels.Severity != "critical" || r.Annotations.Summary == "" {
				t.Errorf("alert %s: severity %q, summary %q", r.Alert, r.Labels.Severity, r.Annotations.Summary)
			}
			anchor, ok := strings.CutPrefix(r.Annotations.Runbook, "https://github.com/orlop-os/orlop/blob/main/docs/runbook.md#")
			if !ok || !anchors[anchor] {
				t.Errorf("alert %s: the runbook has no task %q", r.Alert, r.Annotations.Runbook)
			}
		}
	}
	if alerts < 10 {
		t.Errorf("there are %d alerts", alerts)
	}
}

// scrapeConfig is the configuration of Prometheus in prometheus.yaml. Tests write
// prometheus-operator.yaml from these fields (prometheusoperator_test.go). Therefore the decoder
// rejects any other field: prometheus-operator.yaml would lack it.
type scrapeConfig struct {
	Global struct {
		Interval string `yaml:"scrape_interval"`
	}
	Rules []string    `yaml:"rule_files"`
	Jobs  []scrapeJob `yaml:"scrape_configs"`
}

type scrapeJob struct {
	Name          string `yaml:"job_name"`
	Path          string `yaml:"metrics_path"`
	Scheme        string
	Authorization struct {
		File string `yaml:"credentials_file"`
	}
	TLS struct {
		CA string `yaml:"ca_file"`
	} `yaml:"tls_config"`
	Discovery []struct{ Role string } `yaml:"kubernetes_sd_configs"`
	Relabel   []relabeling            `yaml:"relabel_configs"`
}

type relabeling struct {
	Source      []string `yaml:"source_labels"`
	Regex       string
	Action      string
	Replacement string
	Target      string `yaml:"target_label"`
}

// readScrapeConfig returns the configuration of Prometheus in prometheus.yaml, and the other
// objects of the file.
func readScrapeConfig(t *testing.T) (others []yaml.Node, config scrapeConfig) {
	t.Helper()
	for d := yaml.NewDecoder(bytes.NewReader(readMonitoring(t, "prometheus.yaml"))); ; {
		var node yaml.Node
		if err := d.Decode(&node); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var object struct {
			Kind string
			Data map[string]string
		}
		if err := node.Decode(&object); err != nil {
			t.Fatal(err)
		}
		if object.Kind != "ConfigMap" {
			others = append(others, node)
			continue
		}
		strict := yaml.NewDecoder(strings.NewReader(object.Data["prometheus.yml"]))
		strict.KnownFields(true)
		if err := strict.Decode(&config); err != nil {
			t.Fatal(err)
		}
	}
	return others, config
}

// TestScrapeConfig checks that the configuration of Prometheus has a job for each path of metricsd,
// with the port of metricsd. The other jobs read API servers and kubelets.
func TestScrapeConfig(t *testing.T) {
	_, config := readScrapeConfig(t)
	others := map[string]string{"apiserver": "$1:6443 /metrics", "kubelet": "$1:10250 /metrics", "cadvisor": "$1:10250 /metrics/cadvisor"}
	var found []string
	for _, j := range config.Jobs {
		last := j.Relabel[len(j.Relabel)-1]
		if j.Scheme != "https" || last.Target != "__address__" {
			t.Errorf("a job without HTTPS, or whose last rule does not set the address: %+v", j)
		}
		if want, ok := others[j.Name]; ok {
			if got := last.Replacement + " " + j.Path; got != want {
				t.Errorf("job %s reads %s; want %s", j.Name, got, want)
			}
			delete(others, j.Name)
			continue
		}
		found = append(found, j.Path)
		if j.Path != "/metrics/"+j.Name || last.Replacement != "$1:10262" || paths.PortMetricsd != 10262 {
			t.Errorf("a job of metricsd with another path or port: %+v", j)
		}
	}
	slices.Sort(found)
	if want := metricsd.Paths(); !slices.Equal(found, want) {
		t.Errorf("the jobs have the paths %q; want %q", found, want)
	}
	if len(others) > 0 {
		t.Errorf("there is no job for %v", others)
	}
}
