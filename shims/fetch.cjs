// Makes node's own `fetch` use the proxy from the environment variables. Node does so itself from 22.21 and 24.5 on.
// NODE_OPTIONS requires this script in runs that have a proxy. It loads nothing until the program fetches something,
// because every start of node pays for this code.
'use strict';
(() => {
  const proxy = process.env.https_proxy || process.env.http_proxy;
  const [major, minor] = process.versions.node.split('.').map(Number);
  const knows = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);
  const { fetch } = globalThis;
  if (!proxy || knows || !fetch) return;

  const key = Symbol.for('undici.globalDispatcher.1');
  let isInstalled = false;

  const isDirect = (hostname) => {
    const host = hostname.replace(/^\[|\]$/g, '').toLowerCase();
    const rules = (process.env.no_proxy || '').toLowerCase().split(/[\s,]+/).filter(Boolean);
    return rules.some((rule) => {
      const name = rule.replace(/^\*?\./, '');
      return rule === '*' || host === name || host.endsWith('.' + name);
    });
  };

  // A tunnel for TLS. If the proxy refuses, the program gets the proxy's message as the error.
  const connect = (options, callback) => {
    const net = require('node:net');
    const tls = require('node:tls');
    const { hostname, port: givenPort, protocol, servername } = options;
    const isTls = protocol === 'https:';
    const port = Number(givenPort) || (isTls ? 443 : 80);
    const host = hostname.replace(/^\[|\]$/g, '');
    const once = (error, socket) => {
      const tell = callback;
      callback = () => {};
      tell(error, socket);
    };
    const secured = (socket) => {
      const name = servername || (net.isIP(host) ? undefined : host);
      const secure = tls.connect({ host, port, socket, servername: name, ALPNProtocols: ['http/1.1'] });
      secure.once('secureConnect', () => once(null, secure)).once('error', (error) => once(error));
    };
    if (!isTls || isDirect(hostname)) {
      const socket = net.connect({ host, port, noDelay: true });
      socket.once('error', (error) => once(error));
      socket.once('connect', () => (isTls ? secured(socket) : once(null, socket)));
      return;
    }
    const authority = `${net.isIPv6(host) ? `[${host}]` : host}:${port}`;
    const way = new URL(proxy);
    const request = require('node:http').request({
      host: way.hostname, port: way.port, method: 'CONNECT', path: authority, headers: { host: authority }, agent: false,
    });
    request.once('error', (error) => once(error));
    const refused = (response) => {
      request.destroy();
      once(new Error(response.statusMessage || `the proxy answers ${response.statusCode}`));
    };
    request.once('response', refused);
    request.once('connect', (response, socket) => {
      if (response.statusCode !== 200) {
        socket.destroy();
        return refused(response);
      }
      socket.setNoDelay(true);
      secured(socket);
    });
    request.end();
  };

  const install = () => {
    if (isInstalled) return;
    isInstalled = true;
    // Naming one of its classes loads node's undici, which sets the dispatcher that is replaced here.
    void globalThis.Response;
    const usual = globalThis[key];
    // A program's own dispatcher is left alone.
    if (!usual || usual.constructor.name !== 'Agent') return;
    class Dispatcher extends usual.constructor {
      // For plain HTTP, the request line to the proxy holds the whole address.
      dispatch(options, handler) {
        const origin = new URL(options.origin);
        if (origin.protocol !== 'http:' || isDirect(origin.hostname)) return super.dispatch(options, handler);
        const path = origin.origin + options.path;
        return super.dispatch({ ...options, origin: new URL(proxy).origin, path }, handler);
      }
    }
    globalThis[key] = new Dispatcher({ connect });
  };

  globalThis.fetch = { fetch(...given) { install(); return fetch.apply(this, given); } }.fetch;
})();
