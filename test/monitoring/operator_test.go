// Package monitoring checks the files of docs/monitoring with the Go types of the programs that
// read them.
package monitoring

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	monitoringv1alpha1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1alpha1"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	sigsyaml "sigs.k8s.io/yaml"
)

// TestPrometheusOperator decodes each object of prometheus-operator.yaml with the type of its kind
// and rejects unknown fields. It also checks rules of the Prometheus Operator that the types do not
// express. Each object that a ScrapeConfig names must be in the file, or be an object that
// Kubernetes creates in each namespace.
func TestPrometheusOperator(t *testing.T) {
	var (
		secrets = map[string]corev1.Secret{}
		account corev1.ServiceAccount
		role    rbacv1.ClusterRole
		binding rbacv1.ClusterRoleBinding
		scrapes []monitoringv1alpha1.ScrapeConfig
		rules   []monitoringv1.PrometheusRule
	)
	for _, doc := range documents(t) {
		switch kind := doc.APIVersion + " " + doc.Kind; kind {
		case "v1 ServiceAccount":
			decode(t, doc.text, &account)
		case "rbac.authorization.k8s.io/v1 ClusterRole":
			decode(t, doc.text, &role)
		case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
			decode(t, doc.text, &binding)
		case "v1 Secret":
			var s corev1.Secret
			decode(t, doc.text, &s)
			secrets[s.Namespace+"/"+s.Name] = s
		case "monitoring.coreos.com/v1alpha1 ScrapeConfig":
			var s monitoringv1alpha1.ScrapeConfig
			decode(t, doc.text, &s)
			scrapes = append(scrapes, s)
		case "monitoring.coreos.com/v1 PrometheusRule":
			var r monitoringv1.PrometheusRule
			decode(t, doc.text, &r)
			rules = append(rules, r)
		default:
			t.Errorf("prometheus-operator.yaml has an object of kind %s", kind)
		}
	}
	if len(scrapes) < 10 || len(rules) != 1 || len(rules[0].Spec.Groups) < 2 {
		t.Fatalf("the file has %d ScrapeConfigs and %d PrometheusRules, want 10 or more, and one with two groups or more", len(scrapes), len(rules))
	}
	for _, s := range scrapes {
		checkScrape(t, s, secrets, account)
	}
	subject := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: account.Name, Namespace: account.Namespace}
	if len(binding.Subjects) != 1 || binding.Subjects[0] != subject || binding.RoleRef.Name != role.Name {
		t.Errorf("the binding is %+v; want the role %s and %+v", binding, role.Name, subject)
	}
	for _, g := range rules[0].Spec.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || r.Record != "" || r.Expr.String() == "" {
				t.Errorf("the rule %+v is not an alert with an expression", r)
			}
		}
	}
}

// checkScrape checks a ScrapeConfig by the validation rules of its type, which the API server
// enforces: the allowed values of role, scheme and action, and a target label for each replacement.
func checkScrape(t *testing.T, s monitoringv1alpha1.ScrapeConfig, secrets map[string]corev1.Secret, account corev1.ServiceAccount) {
	t.Helper()
	spec := s.Spec
	if len(spec.KubernetesSDConfigs) != 1 || spec.KubernetesSDConfigs[0].Role != monitoringv1alpha1.KubernetesRoleNode || *spec.Scheme != monitoringv1.SchemeHTTPS {
		t.Fatalf("%s: want a discovery of nodes and the scheme HTTPS, got %+v", s.Name, spec)
	}
	discovery := spec.KubernetesSDConfigs[0]
	for _, a := range []*monitoringv1.SafeAuthorization{spec.Authorization, discovery.Authorization} {
		if err := a.Validate(); err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		secret, ok := secrets[s.Namespace+"/"+a.Credentials.Name]
		if !ok || secret.Type != corev1.SecretTypeServiceAccountToken || a.Credentials.Key != corev1.ServiceAccountTokenKey ||
			secret.Annotations[corev1.ServiceAccountNameKey] != account.Name || secret.Namespace != account.Namespace {
			t.Errorf("%s: the credentials %+v are not the token of the ServiceAccount in a Secret of the file: %+v", s.Name, a.Credentials, secret)
		}
	}
	for _, c := range []*monitoringv1.SafeTLSConfig{spec.TLSConfig, discovery.TLSConfig} {
		// Kubernetes creates this ConfigMap in each namespace.
		if err := c.Validate(); err != nil || c.CA.ConfigMap == nil || c.CA.ConfigMap.Name != "kube-root-ca.crt" || c.CA.ConfigMap.Key != corev1.ServiceAccountRootCAKey {
			t.Errorf("%s: the TLS configuration %+v is invalid (%v), or does not use the CA in kube-root-ca.crt", s.Name, c, err)
		}
	}
	if len(spec.RelabelConfigs) == 0 {
		t.Errorf("%s has no relabelings", s.Name)
	}
	for _, r := range spec.RelabelConfigs {
		if (r.Action != "" || r.TargetLabel == "") && (r.Action != "keep" || r.Regex == "") {
			t.Errorf("%s: the relabeling %+v neither has a target label nor keeps targets by an expression", s.Name, r)
		}
	}
}

type document struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	text       []byte
}

// documents returns all documents of prometheus-operator.yaml.
func documents(t *testing.T) (all []document) {
	t.Helper()
	text, err := os.ReadFile("../../docs/monitoring/prometheus-operator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var node yaml.Node
		if err := d.Decode(&node); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		var one document
		if err := node.Decode(&one); err != nil {
			t.Fatal(err)
		}
		if one.text, err = yaml.Marshal(&node); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
}

// decode decodes a document into the type of its kind. It rejects unknown fields.
func decode(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := sigsyaml.UnmarshalStrict(text, into); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
}
