package addons

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// oneKind is an API server that serves Widgets of example.org in some versions, and stores the
// names of existing objects.
type oneKind struct {
	versions []string
	there    map[string]bool
	asked    int // discovery requests
}

func (s *oneKind) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	say := func(code int, what any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(what)
	}
	var versions []metav1.GroupVersionForDiscovery
	for _, v := range s.versions {
		versions = append(versions, metav1.GroupVersionForDiscovery{GroupVersion: "example.org/" + v, Version: v})
	}
	// the parts of the path: apis, group, version, namespaces, namespace, resource, name
	part := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Path == "/api":
		say(200, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}})
	case r.URL.Path == "/apis":
		s.asked++
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		if len(versions) > 0 {
			list.Groups = []metav1.APIGroup{{Name: "example.org", Versions: versions, PreferredVersion: versions[0]}}
		}
		say(200, list)
	case len(part) < 3 || part[1] != "example.org" || !slices.Contains(s.versions, part[2]):
		http.NotFound(w, r) // as the API server for an unserved path
	case len(part) == 3:
		say(200, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "example.org/" + part[2],
			APIResources: []metav1.APIResource{{Name: "widgets", Kind: "Widget", Namespaced: true, Verbs: metav1.Verbs{"get", "delete"}}}})
	case !s.there[part[6]]:
		say(404, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: 404,
			Details: &metav1.StatusDetails{Name: part[6], Group: "example.org", Kind: "widgets"}})
	case r.Method == http.MethodDelete:
		delete(s.there, part[6])
		fallthrough
	default:
		say(200, map[string]any{"apiVersion": "example.org/" + part[2], "kind": "Widget", "metadata": map[string]any{"name": part[6], "namespace": "web", "uid": "1"}})
	}
}

// TestVersionNotServed checks that an object of a version that is no longer served still exists and
// can be deleted. The object counts as deleted only if no version of its kind is served.
func TestVersionNotServed(t *testing.T) {
	for name, test := range map[string]struct {
		before, after []string // versions that are served at the first discovery, and after it
		there         map[string]bool
		found         bool
	}{
		"the version is served":                         {[]string{"v1beta1"}, []string{"v1beta1"}, map[string]bool{"w": true}, true},
		"the version is served, no object":              {[]string{"v1beta1"}, []string{"v1beta1"}, nil, false},
		"another version is served":                     {[]string{"v1"}, []string{"v1"}, map[string]bool{"w": true}, true},
		"another version is served, no object":          {[]string{"v1"}, []string{"v1"}, nil, false},
		"another version is served after the discovery": {[]string{"v1beta1"}, []string{"v1"}, map[string]bool{"w": true}, true},
		"the kind is no longer served":                  {[]string{"v1beta1"}, nil, map[string]bool{"w": true}, false},
		"the kind was never served":                     {nil, nil, map[string]bool{"w": true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			api := &oneKind{versions: test.before, there: maps.Clone(test.there)}
			server := httptest.NewServer(api)
			defer server.Close()
			config := &rest.Config{Host: server.URL}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			known := newKinds(client)
			i := Item{Group: "example.org", Version: "v1beta1", Kind: "Widget", Resource: "widgets", Namespace: "web", Name: "w"}
			known.lookup(i.gvk())
			api.versions = test.after
			l, err := impersonate(config, "somebody", "", known)
			if err != nil {
				t.Fatal(err)
			}
			o, err := l.get(t.Context(), i)
			if err != nil || (o != nil) != test.found {
				t.Fatalf("found %v, %v; want found: %v", o, err, test.found)
			}
			if err := l.delete(t.Context(), i, "1"); err != nil {
				t.Fatal(err)
			}
			if test.found && api.there["w"] {
				t.Error("the object is not deleted")
			}
			if !test.found && len(test.there) > 0 && !api.there["w"] {
				t.Error("the object is deleted although its kind is not served")
			}
			if api.asked > 4 {
				t.Errorf("%d discovery requests, want at most 4", api.asked)
			}
		})
	}
}
