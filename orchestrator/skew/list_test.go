package skew

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/pkg/disruption"
)

// TestReadServer checks the result of readServer for an API server that emulates another minor
// version, for API servers that do not, and for servers with a response that is no version.
func TestReadServer(t *testing.T) {
	for _, test := range []struct {
		answer string
		status int
		want   disruption.Server
	}{
		{`{"major":"1","minor":"37","emulationMajor":"1","emulationMinor":"36","gitVersion":"v1.37.2"}`, http.StatusOK, disruption.Server{Version: "v1.37.2", Emulated: "v1.36"}},
		{`{"major":"1","minor":"36","emulationMajor":"1","emulationMinor":"36","gitVersion":"v1.36.3"}`, http.StatusOK, disruption.Server{Version: "v1.36.3"}},
		{`{"major":"1","minor":"30","gitVersion":"v1.30.1"}`, http.StatusOK, disruption.Server{Version: "v1.30.1"}},
		{`[]`, http.StatusOK, disruption.Server{Problem: "cannot decode its version: "}},
		{`starting`, http.StatusServiceUnavailable, disruption.Server{Problem: "unable to handle the request"}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/version" {
				t.Errorf("readServer requests the path %s", r.URL.Path)
			}
			w.WriteHeader(test.status)
			_, _ = w.Write([]byte(test.answer))
		}))
		got := readServer(t.Context(), netip.MustParseAddr("10.0.0.11"), &rest.Config{Host: server.URL})
		server.Close()
		problem := test.want.Problem
		if problem != "" && strings.Contains(got.Problem, problem) {
			got.Problem = problem
		}
		test.want.Address = "10.0.0.11"
		if got != test.want {
			t.Errorf("response %s: %+v, want %+v", test.answer, got, test.want)
		}
	}
}

// TestListNodes checks the Nodes that listNodes returns, with their versions. It also checks that
// firstNodes calls the next API server if the first one does not answer.
func TestListNodes(t *testing.T) {
	node := func(name, version string, labels map[string]string, addresses ...corev1.NodeAddress) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Status:     corev1.NodeStatus{Addresses: addresses, NodeInfo: corev1.NodeSystemInfo{KubeletVersion: version}},
		}
	}
	client := fake.NewClientset(
		node("a", "v1.37.2", map[string]string{"node-role.kubernetes.io/control-plane": ""},
			corev1.NodeAddress{Type: corev1.NodeHostName, Address: "a"}, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.11"}),
		node("w", "v1.36.3", nil),
	)
	got, err := listNodes(t.Context(), client)
	want := []disruption.Node{{Name: "a", Address: "10.0.0.11", Version: "v1.37.2", ControlPlane: true}, {Name: "w", Version: "v1.36.3"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"x"},"status":{"nodeInfo":{"kubeletVersion":"v1.36.1"}}}]}`))
	}))
	defer server.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	at := func(host string) *rest.Config { return &rest.Config{Host: host} }
	if got, problem := firstNodes(t.Context(), []string{closed.URL, server.URL}, at); problem != "" || len(got) != 1 || got[0].Name != "x" {
		t.Errorf("%+v, %s", got, problem)
	}
	if _, problem := firstNodes(t.Context(), []string{closed.URL}, at); !strings.Contains(problem, "refused") {
		t.Errorf("the problem if no API server answers: %q", problem)
	}
}
