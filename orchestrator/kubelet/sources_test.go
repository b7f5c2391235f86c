package kubelet

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"testing"
)

// answers is a transport that answers each request with the HTTP status, as if over TLS from a
// server with the common name in its certificate.
type answers struct {
	status int
	name   string
}

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: a.name}}
	return &http.Response{StatusCode: a.status, TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}, nil
}

// TestAnswerListener checks that the listener is called for an answer of an API server, but not for
// an error of an API server or an answer of the offline API server.
func TestAnswerListener(t *testing.T) {
	for _, c := range []struct {
		answers
		want bool
	}{
		{answers{http.StatusOK, "kube-apiserver"}, true},
		{answers{http.StatusServiceUnavailable, "kube-apiserver"}, false},
		{answers{http.StatusOK, "orlop:offline-api"}, false},
	} {
		first := false
		l := answerListener{c.answers, func() { first = true }}
		if _, err := l.RoundTrip(&http.Request{}); err != nil {
			t.Fatal(err)
		}
		if first != c.want {
			t.Errorf("%+v: the listener was called: %t", c.answers, first)
		}
	}
}

// TestForward checks that forward passes all values on, in order. It closes told only after it has
// passed a value that it received after the first answer of an API server.
func TestForward(t *testing.T) {
	sink, answered, told := make(chan int, 3), make(chan struct{}), make(chan struct{})
	in := forward(t.Context(), sink, answered, told)
	in <- 1
	in <- 2 // the first value has passed now
	select {
	case <-told:
		t.Fatal("told is closed before an API server has answered")
	default:
	}
	if got := []int{<-sink, <-sink}; got[0] != 1 || got[1] != 2 {
		t.Fatal(got)
	}
	close(answered)
	in <- 3
	<-told
	if got := <-sink; got != 3 {
		t.Error(got)
	}
}
