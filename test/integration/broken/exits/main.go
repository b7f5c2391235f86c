// Command exits ends immediately. If it runs as init or machined, the kernel panics. If it runs as
// a service, the service never becomes ready.
package main

func main() {}
