package kubeapiserver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/orlop-os/orlop/orchestrator/revocation/revocationtest"
	"github.com/orlop-os/orlop/pkg/trust"
)

// some are fake Nodes: here has the UIDs of the cached Nodes, there those of the stored Nodes, and
// silent is the error of a request.
type some struct {
	here, there map[string]types.UID
	silent      error
}

func (s *some) known(name string) (types.UID, bool) {
	uid, ok := s.here[name]
	return uid, ok
}

func (s *some) get(_ context.Context, name string) (types.UID, error) {
	if uid, ok := s.there[name]; ok && s.silent == nil {
		return uid, nil
	}
	if s.silent != nil {
		return "", s.silent
	}
	return "", apierrors.NewNotFound(corev1.Resource("nodes"), name)
}

// caller returns a user with the token of a pod on a Node.
func caller(name, uid string) user.Info {
	info := serviceaccount.ServiceAccountInfo{Namespace: "n", Name: "a", PodName: "p", PodUID: "1", NodeName: name, NodeUID: uid}
	return info.UserInfo()
}

// TestTokensOfRemovedNodes checks that the token of a pod is valid only as long as its Node exists,
// and its machine was not removed.
func TestTokensOfRemovedNodes(t *testing.T) {
	there := &some{here: map[string]types.UID{"w1": "1", "old": "1", "out": "1"}, there: map[string]types.UID{"new": "2", "old": "2"}}
	file := filepath.Join(t.TempDir(), "revoked.json")
	// The revocation without a machine name has no effect here.
	revocationtest.Write(t, file, trust.RevokedSet{Revoked: []trust.Revocation{{Lineage: "12ab", Machine: "out"}, {Lineage: "34cd"}}})
	r, err := newRevocations(file)
	if err != nil {
		t.Fatal(err)
	}
	r.nodes = there
	var client user.Info
	guard := r.wrapAuthenticator(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: client}, true, nil
	}))
	for _, c := range []struct {
		client user.Info
		silent bool
		want   string
	}{
		{client: caller("w1", "1")},
		{client: caller("w1", "1"), silent: true},
		{client: caller("w1", "")},
		{client: caller("new", "2")},
		// The Node was created again, and the cache has only the old Node.
		{client: caller("old", "2")},
		{client: caller("w1", "0"), want: "token: its Node w1 was deleted, so the token is invalid"},
		{client: caller("w2", "1"), want: "token: its Node w2 was deleted, so the token is invalid"},
		{client: caller("w2", ""), want: "token: its Node w2 was deleted, so the token is invalid"},
		{client: caller("w2", "1"), silent: true, want: "token: cannot look up its Node w2: etcd is away"},
		{client: caller("out", "1"), want: "token: its machine out was removed from the cluster"},
		{client: caller("", "")}, // a token without a Node
		// a user without a token
		{client: &user.DefaultInfo{Name: "dora", Extra: map[string][]string{serviceaccount.NodeNameKey: {"w2"}}}},
		{client: nil},
	} {
		there.silent = nil
		if c.silent {
			there.silent = errors.New("etcd is away")
		}
		client = c.client
		response, ok, err := guard.AuthenticateRequest(httptest.NewRequest(http.MethodGet, "/api", nil))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want || ok != (c.want == "") || (response != nil) != ok {
			t.Errorf("%+v: %v, %q, want %q", c.client, ok, got, c.want)
		}
	}
	there.silent = nil

	// A request in progress ends only when its own Node is deleted, or its machine is removed.
	begun, ended := make(chan struct{}), make(chan string)
	watch := r.track(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		if _, ok, err := guard.AuthenticateRequest(request); !ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		begun <- struct{}{}
		<-request.Context().Done()
		ended <- context.Cause(request.Context()).Error()
	}))
	leaving, leave := context.WithCancel(t.Context())
	for _, client = range []user.Info{caller("w1", "1"), caller("w1", ""), caller("new", "2"), &user.DefaultInfo{Name: "dora"}} {
		go watch.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/api", nil).WithContext(leaving))
		<-begun
	}
	r.nodeDeleted(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", UID: "1"}})
	for range 2 {
		if got := <-ended; got != errNodeDeleted("w1").Error() {
			t.Errorf("a request with a token of the deleted Node ended with: %s", got)
		}
	}
	// The deletion of an earlier Node of that name has no effect.
	r.nodeDeleted(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "new", UID: "1"}})
	revocationtest.Write(t, file, trust.RevokedSet{Revoked: []trust.Revocation{{Lineage: "12ab", Machine: "new"}}})
	reload(t, r)
	if got := <-ended; got != errRemoved("new").Error() {
		t.Errorf("a request with a token of the removed machine ended with: %s", got)
	}
	leave()
	if got := <-ended; got != "context canceled" {
		t.Errorf("a request without a token ended with: %s", got)
	}
}
