package orlop

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"gotest.tools/v3/golden"
)

// operatorPage is the comment at the beginning of prometheus-operator.yaml.
const operatorPage = `# The metrics of all machines, API servers and kubelets for a Prometheus of the Prometheus operator,
# and the alerts: the jobs of prometheus.yaml as ScrapeConfigs, and rules.yaml as a PrometheusRule.
# Machines are no Services, so no ServiceMonitor finds them. "go test . -update" writes this file.
#
# It needs "Machine.spec.metrics" on each machine (docs/runbook.md, task 123) and the namespace
# monitoring. The Prometheus must select these objects; each has the label
# app.kubernetes.io/part-of: orlop. A ScrapeConfig reads no file of the pod, so a Secret has the
# token of the service account. Kubernetes writes the token, which ends with the Secret.
`

const (
	operatorNamespace = "monitoring"
	// accountFiles is the directory with the token and the CA in a pod.
	accountFiles = "/var/run/secrets/kubernetes.io/serviceaccount/"
	tokenSecret  = "prometheus-machines"
)

// The objects of the Prometheus operator, with the fields that the jobs need. test/monitoring
// decodes prometheus-operator.yaml with the operator's own types.
type (
	operatorObject struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   operatorMetadata
		Type       string `yaml:",omitempty"`
		Spec       any    `yaml:",omitempty"`
	}
	operatorMetadata struct {
		Name        string
		Namespace   string
		Labels      map[string]string `yaml:",flow,omitempty"`
		Annotations map[string]string `yaml:",flow,omitempty"`
	}
	scrapeSpec struct {
		JobName       string `yaml:"jobName"`
		Interval      string `yaml:"scrapeInterval"`
		Scheme        string
		Path          string `yaml:"metricsPath"`
		Authorization operatorAuthorization
		TLS           operatorTLS         `yaml:"tlsConfig"`
		Discovery     []operatorDiscovery `yaml:"kubernetesSDConfigs"`
		Relabelings   []operatorRelabeling
	}
	operatorAuthorization struct {
		Credentials struct{ Name, Key string } `yaml:",flow"`
	}
	operatorTLS struct {
		CA struct {
			ConfigMap struct{ Name, Key string } `yaml:"configMap"`
		} `yaml:",flow"`
	}
	operatorDiscovery struct {
		Role          string
		Server        string `yaml:"apiServer"`
		Authorization operatorAuthorization
		TLS           operatorTLS `yaml:"tlsConfig"`
	}
	operatorRelabeling struct {
		Source      []string `yaml:"sourceLabels,flow,omitempty"`
		Regex       string   `yaml:",omitempty"`
		Action      string   `yaml:",omitempty"`
		Replacement string   `yaml:",omitempty"`
		Target      string   `yaml:"targetLabel,omitempty"`
	}
)

// TestPrometheusOperator checks that prometheus-operator.yaml has the jobs of prometheus.yaml and
// the rules of rules.yaml. `go test . -update` writes prometheus-operator.yaml.
func TestPrometheusOperator(t *testing.T) {
	others, config := readScrapeConfig(t)
	if config.Rules == nil || config.Global.Interval == "" {
		t.Fatalf("prometheus.yaml: %+v", config)
	}
	var page bytes.Buffer
	page.WriteString(operatorPage)
	encoder := yaml.NewEncoder(&page)
	encoder.SetIndent(2)
	encode := func(object any) {
		t.Helper()
		if err := encoder.Encode(object); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range others {
		// The comment of the first object describes prometheus.yaml, and operatorPage replaces it.
		o.HeadComment, o.Content[0].HeadComment, o.Content[0].Content[0].HeadComment = "", "", ""
		encode(&o)
	}
	secret := operatorObject{APIVersion: "v1", Kind: "Secret", Metadata: operatorMeta(tokenSecret), Type: "kubernetes.io/service-account-token"}
	secret.Metadata.Annotations = map[string]string{"kubernetes.io/service-account.name": accountOf(t, others)}
	encode(secret)
	for _, j := range config.Jobs {
		encode(operatorObject{APIVersion: "monitoring.coreos.com/v1alpha1", Kind: "ScrapeConfig", Metadata: operatorMeta("orlop-" + j.Name), Spec: scrapeSpecOf(t, config.Global.Interval, j)})
	}
	var rules yaml.Node
	if err := yaml.Unmarshal(readMonitoring(t, "rules.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	rules.Content[0].Content[0].HeadComment = ""
	encode(operatorObject{APIVersion: "monitoring.coreos.com/v1", Kind: "PrometheusRule", Metadata: operatorMeta("orlop-machines"), Spec: rules.Content[0]})
	if err := encoder.Close(); err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, page.String(), filepath.Join("..", "docs", "monitoring", "prometheus-operator.yaml"))
}

func operatorMeta(name string) operatorMetadata {
	return operatorMetadata{Name: name, Namespace: operatorNamespace, Labels: map[string]string{"app.kubernetes.io/part-of": "orlop"}}
}

// accountOf returns the name of the service account that prometheus.yaml creates.
func accountOf(t *testing.T, objects []yaml.Node) string {
	t.Helper()
	for _, o := range objects {
		var account struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := o.Decode(&account); err != nil {
			t.Fatal(err)
		}
		if account.Kind == "ServiceAccount" && account.Metadata.Namespace == operatorNamespace {
			return account.Metadata.Name
		}
	}
	t.Fatalf("prometheus.yaml has no service account in the namespace %s", operatorNamespace)
	return ""
}

// scrapeSpecOf translates a job to a ScrapeConfig. In place of the files with the token and the CA
// in the pod of Prometheus, the ScrapeConfig names a Secret and a ConfigMap of the namespace.
func scrapeSpecOf(t *testing.T, interval string, j scrapeJob) scrapeSpec {
	t.Helper()
	if j.Authorization.File != accountFiles+"token" || j.TLS.CA != accountFiles+"ca.crt" || len(j.Discovery) != 1 || j.Discovery[0].Role != "node" {
		t.Errorf("job %s has other credentials or another discovery, which scrapeSpecOf does not translate: %+v", j.Name, j)
	}
	var authorization operatorAuthorization
	authorization.Credentials.Name, authorization.Credentials.Key = tokenSecret, "token"
	var tls operatorTLS
	tls.CA.ConfigMap.Name, tls.CA.ConfigMap.Key = "kube-root-ca.crt", "ca.crt"
	spec := scrapeSpec{
		JobName: j.Name, Interval: interval, Scheme: strings.ToUpper(j.Scheme), Path: j.Path, Authorization: authorization, TLS: tls,
		Discovery: []operatorDiscovery{{Role: "Node", Server: "https://kubernetes.default.svc", Authorization: authorization, TLS: tls}},
	}
	for _, r := range j.Relabel {
		spec.Relabelings = append(spec.Relabelings, operatorRelabeling(r))
	}
	return spec
}
