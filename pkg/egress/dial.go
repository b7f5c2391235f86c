package egress

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// maxAnswer is the maximum size of the answer of a proxy to CONNECT, in bytes.
const maxAnswer = 64 << 10

// Dial opens a TCP connection to a server, host:port, directly or through the proxy (CONNECT, RFC
// 9110 section 9.3.6), and reports whether it goes through the proxy. ctx bounds the time until the
// proxy has answered; after that, it has no effect. Through a proxy, only protocols in which the
// client sends first are possible.
func (c Config) Dial(ctx context.Context, d *net.Dialer, address string) (conn net.Conn, proxied bool, err error) {
	proxy, err := c.ProxyFor(&url.URL{Scheme: "https", Host: address})
	if err != nil {
		return nil, false, err
	}
	if proxy == nil {
		conn, err = d.DialContext(ctx, "tcp", address)
		return conn, false, err
	}
	if conn, err = c.tunnel(ctx, d, proxy, address); err != nil {
		return nil, true, fmt.Errorf("proxy %s: %w", name(proxy), err)
	}
	return conn, true, nil
}

// tunnel connects to a server through a proxy.
func (c Config) tunnel(ctx context.Context, d *net.Dialer, proxy *url.URL, address string) (net.Conn, error) {
	port := cmp.Or(proxy.Port(), map[string]string{"http": "80", "https": "443"}[proxy.Scheme])
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, err
	}
	raw := conn
	// A deadline in the past ends a pending read or write.
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	if proxy.Scheme == "https" {
		roots, err := c.Roots("", true)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		conn = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: proxy.Hostname(), MinVersion: tls.VersionTLS12})
	}
	err = connect(conn, proxy.User, address)
	if !stop() { // ctx has ended, so the connection has a deadline in the past, or gets it
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close() // the error has the reason
		return nil, err
	}
	return conn, nil
}

// connect sends a CONNECT request for a server to a proxy, and reads the answer.
func connect(conn net.Conn, user *url.Userinfo, address string) error {
	request := http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{"User-Agent": {"orlop"}}}
	if user != nil {
		password, _ := user.Password()
		request.Header.Set("Proxy-Authorization", Basic(user.Username(), password))
	}
	if err := request.Write(conn); err != nil {
		return err
	}
	from := bufio.NewReader(io.LimitReader(conn, maxAnswer))
	answer, err := http.ReadResponse(from, &request)
	if err != nil {
		return err
	}
	// The body of a rejection is not read, because the connection is closed.
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", sanitize.ASCII(strings.TrimSpace(answer.Status), 200))
	}
	if from.Buffered() > 0 {
		return errors.New("it sends data before the server has received any")
	}
	return nil
}

// Basic returns the value of an authorization header with a user and a password (RFC 7617).
func Basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}
