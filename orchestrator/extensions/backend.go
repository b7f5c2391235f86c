package extensions

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// dialTimeout is how long a backend may take to accept a connection.
const dialTimeout = 2 * time.Second

// maxTried is the number of endpoints of a Service that are tried; a single answer is sufficient.
const maxTried = 3

// reacher finds and dials backends from the machine of the API server.
type reacher struct {
	client kubernetes.Interface
	dial   func(ctx context.Context, address string) error
}

func dial(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// reach returns the reason why the backend accepts no connection, or "" if the backend accepts a
// connection or if the state cannot be determined.
func (r reacher) reach(ctx context.Context, b backend) string {
	if b.url != "" {
		return r.reachURL(ctx, b.url)
	}
	if b.name == "" {
		return "it names neither a Service nor a URL"
	}
	of := b.namespace + "/" + b.name
	cached := metav1.GetOptions{ResourceVersion: "0"}
	service, err := r.client.CoreV1().Services(b.namespace).Get(ctx, b.name, cached)
	switch {
	case apierrors.IsNotFound(err):
		return "no Service " + of
	case err != nil:
		return ""
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return r.try(ctx, []string{net.JoinHostPort(service.Spec.ExternalName, strconv.Itoa(int(b.port)))}, of)
	}
	port, there := portOf(service, b.port)
	if !there {
		return fmt.Sprintf("Service %s has no port %d", of, b.port)
	}
	slices, err := r.client.DiscoveryV1().EndpointSlices(b.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + b.name, ResourceVersion: "0",
	})
	if err != nil {
		return ""
	}
	addresses := endpoints(slices.Items, port)
	if len(addresses) == 0 {
		return "Service " + of + " has no ready endpoints"
	}
	return r.try(ctx, addresses, of)
}

func (r reacher) reachURL(ctx context.Context, text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return "its URL has no host"
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return r.try(ctx, []string{net.JoinHostPort(u.Hostname(), port)}, "")
}

// try dials the addresses until one accepts, and otherwise returns the last reason.
func (r reacher) try(ctx context.Context, addresses []string, service string) string {
	var last error
	for _, a := range addresses[:min(len(addresses), maxTried)] {
		if last = r.dial(ctx, a); last == nil {
			return ""
		}
	}
	if ctx.Err() != nil {
		return ""
	}
	if service != "" {
		return "Service " + service + ": " + last.Error()
	}
	return last.Error()
}

// portOf returns the name of the port with a number of a Service; endpoints are listed by that
// name.
func portOf(s *corev1.Service, number int32) (name string, there bool) {
	for _, p := range s.Spec.Ports {
		if p.Port == number {
			return p.Name, true
		}
	}
	return "", false
}

// endpoints returns the addresses of ready endpoints, host:port.
func endpoints(all []discoveryv1.EndpointSlice, port string) []string {
	var out []string
	for _, s := range all {
		for _, p := range s.Ports {
			if p.Port == nil || (p.Name != nil && *p.Name != port) || (p.Name == nil && port != "") {
				continue
			}
			for _, e := range s.Endpoints {
				if e.Conditions.Ready != nil && !*e.Conditions.Ready {
					continue
				}
				for _, a := range e.Addresses {
					out = append(out, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	return out
}
