// Command waiter waits until a URL answers with status 200. It fails after 600 attempts, which take
// 150 seconds or more. It does not verify the certificate of the server, because the URL has an
// address of the guest itself.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	pause    = 250 * time.Millisecond
	attempts = 600
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "waiter: expected a URL")
		os.Exit(2)
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	var last error
	for range attempts {
		if last = get(client, os.Args[1]); last == nil {
			return
		}
		time.Sleep(pause)
	}
	fmt.Fprintln(os.Stderr, "waiter:", last)
	os.Exit(1)
}

// get requests the URL. It returns nil if the status of the response is 200.
func get(client *http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	// An HTTP client reuses the connection only if the body of the response was read to its end.
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return err
}
